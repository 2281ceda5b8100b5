"""The canonical form of a traced graph: what two references share that compute the same at another shape."""
