"""A second verdict, by KernelBench's rules, for comparison with published figures. It never affects the reward.

KernelBench constructs both models under one seed, keeps the constructors' weights, draws inputs from the task's
`get_inputs`, and compares the outputs by `torch.allclose`. The tolerance, absolute and relative alike, is that of
`get_tolerance_for_precision` in `src/kernelbench/eval.py` of ScalingIntelligence/KernelBench (commit 423217d): 1e-4 for
float32, 1e-2 for float16 and bfloat16; its first versions allowed 1e-2 for float32. Five sets of inputs are the default
of its script (`num_correct_trials` in `scripts/eval_from_generations.py`).

Differences: outputs must be tensors of the reference's shape, dtype and device in their own memory, as for the judge;
the task's dtypes are kept; seeds are secret; nothing is timed.
"""

from __future__ import annotations

import math

import numpy as np

from cudal1_env.judge.device.tensors import Array
from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.timing.trials import of_reference
from cudal1_env.judge.oracle.numerics import doubles
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.records import KernelBench, Status

_SETS = 5
"""Input sets, as in KernelBench."""
_TOLERANCE = 1e-4
"""KernelBench's tolerance for float32."""
_HALF_TOLERANCE = 1e-2
"""KernelBench's tolerance for half precision."""


def kernelbench_verdict(reference: Arm, candidate: Arm, pool: Pool, label: str) -> KernelBench:
    """Judge a program by KernelBench's rules."""
    tolerances = [
        _HALF_TOLERANCE if out.dtype in ("float16", "bfloat16") else _TOLERANCE for out in pool.io_spec.outputs
    ]
    largest, passed = 0.0, 0
    try:
        with of_reference(pool):
            reference.build(pool.task.source)
            reference.construct(pool.construct_seed)
        candidate.construct(pool.construct_seed)
        for number in range(_SETS):
            inputs = pool.oracle.draw(pool.secrets.number("kernelbench", label, number))
            with of_reference(pool):
                right = reference.answers(inputs)
            got = candidate.answers(inputs)
            found = [close(*pair) for pair in zip(right, got, tolerances, strict=True)]
            largest = max([largest, *(error for error, _ in found)])
            passed += all(is_close for _, is_close in found)
    except Fault as fault:
        return KernelBench(status=fault.status, message=fault.message, passed=passed)
    text = f"{passed} of {_SETS} sets of inputs pass torch.allclose with KernelBench's tolerance"
    status = Status.CORRECT if passed == _SETS else Status.WRONG_OUTPUT
    return KernelBench(status=status, message=text, passed=passed, max_error=float(f"{largest:.1e}"))


def close(right: Array, got: Array, tolerance: float) -> tuple[float, bool]:
    """Return the largest absolute difference, and whether `torch.allclose(right, got, tolerance, tolerance)` holds.

    A NaN is close to nothing and infinitely far from everything.
    """
    if not right.shape[0]:
        return 0.0, True
    right, got = doubles(right), doubles(got)
    with np.errstate(all="ignore"):
        difference = abs(right - got)
        difference[right == got] = 0.0  # equal infinities
        largest = float(difference.max())
        is_close = bool(((difference <= tolerance + tolerance * abs(got)) & (difference < math.inf)).all())
    return (largest if math.isfinite(largest) else math.inf), is_close
