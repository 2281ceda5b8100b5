"""Commands of `cudal1-env`, one per file; `cli.py` has the others and `main`."""
