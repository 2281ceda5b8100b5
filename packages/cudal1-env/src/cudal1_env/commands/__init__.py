"""Commands of `cudal1-env` that have a file of their own; `cli.py` has the others and `main`."""
