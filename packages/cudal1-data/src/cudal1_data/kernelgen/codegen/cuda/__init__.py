"""Kernels in CUDA C++. No header is included, so that NVRTC builds them in a fraction of a second."""
