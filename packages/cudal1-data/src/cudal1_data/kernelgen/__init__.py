"""Kernel generation: from a reference program to equivalent programs with custom kernels.

`frontend/` parses a reference into a graph (`ir.py`), `fusion.py` groups its operators into kernels, `codegen/` writes
kernels and programs, `make.py` has the templates' parameters. Nothing is executed and nothing imports torch.
"""
