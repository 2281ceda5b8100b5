"""Testing kit for evaluators and rewards: attacks, mutants, simulated timing noise.

- `programs`: the attacks and honest look-alikes of tests/exploits.
- `templates`: attacks around any correct program; its mutants are in `cudal1_env.mutants`.
- `under_test`, `child`: the suite for any evaluator, including others than cudal1's.
- `noise`: timing noise without a clock.
- `strategies`: hypothesis strategies over all of these; the only module that needs hypothesis (extra `testing`).
"""
