"""Tasks and their answers: the oracle process, secret input sets, tolerances, comparisons."""
