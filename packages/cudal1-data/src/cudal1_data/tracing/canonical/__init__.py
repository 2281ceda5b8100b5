"""The canonical form of a traced graph: the same for references that compute the same at other shapes."""
