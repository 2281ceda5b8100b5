"""Testing kit: what one needs to test code that is judged, or that judges.

- `programs`: the attacks and honest look-alikes of tests/exploits.
- `templates`: attacks around any correct program; mutants of it are in `cudal1_env.mutants`.
- `under_test`, `child`: the same suite for any evaluator, also one that is not cudal1's.
- `noise`: timing noise without a clock.
- `strategies`: hypothesis strategies over all of these; the only module that needs hypothesis (extra `testing`).
"""
