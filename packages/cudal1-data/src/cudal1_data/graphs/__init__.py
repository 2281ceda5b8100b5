"""Operator graphs of references: which tasks ask for the same computation at another shape."""
