"""The frontend: parses a reference's text into the graph of `ir.py`."""
