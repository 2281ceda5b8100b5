"""Kernel generation: from a reference program to programs that compute the same by kernels of their own.

`frontend/` reads a reference's text into a graph (`ir.py`), `fusion.py` plans which parts of it become one
kernel, `codegen/` writes kernels and programs, `make.py` holds the templates' parameters. Nothing is
executed and nothing imports torch.
"""
