"""The CUDA device: one GPU, its memory, copies, and the state that its driver reports."""
