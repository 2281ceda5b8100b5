"""The oracle process: inputs, float64 answers, and what each element of an output may err."""
