"""Variant templates: from a reference program to programs that compute the same by kernels of their own.

`reader.py` reads a reference's text into a graph, `fusion.py` says which parts of it become one kernel, `cuda_text.py`
and `triton_text.py` write kernels, `programs.py` whole programs. Nothing is executed and nothing imports torch.
"""
