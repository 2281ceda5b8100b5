"""Timing of calls: chains, trials of two arms, harness overhead, interference."""
