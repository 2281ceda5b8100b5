"""The CUDA device: one GPU, its memory, its copies, what the driver tells of it."""
