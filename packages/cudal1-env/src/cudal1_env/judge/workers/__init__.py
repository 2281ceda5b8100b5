"""The judge's handling of worker processes: starting, freezing and killing them, and their build folders."""
