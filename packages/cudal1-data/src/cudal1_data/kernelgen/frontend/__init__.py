"""The frontend: from a reference's text to the graph of `ir.py`."""
