"""The code generators: from a plan of kernels to programs in PyTorch, Triton and CUDA C++."""
