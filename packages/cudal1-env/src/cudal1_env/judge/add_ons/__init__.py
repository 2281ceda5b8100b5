"""What a record holds beyond the verdict: speedups against baselines, a profile, the self-test of `doctor`."""
