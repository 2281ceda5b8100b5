"""What a task is and what its answers are: the oracle process, secret input sets, tolerances, comparisons."""
