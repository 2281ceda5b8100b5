"""Additions to a record beyond the verdict: speedups against baselines, a profile, KernelBench's verdict."""
