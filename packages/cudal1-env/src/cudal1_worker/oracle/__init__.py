"""The oracle process: inputs, float64 answers, and the tolerance of each output element."""
