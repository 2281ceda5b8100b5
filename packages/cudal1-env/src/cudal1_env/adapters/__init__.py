"""Plain modules by which other projects' trainers and benchmarks get verdicts; each needs its own project only."""
