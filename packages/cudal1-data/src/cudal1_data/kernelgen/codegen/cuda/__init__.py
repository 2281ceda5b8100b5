"""Kernels in CUDA C++. They include no headers, so that NVRTC builds them in a fraction of a second."""
