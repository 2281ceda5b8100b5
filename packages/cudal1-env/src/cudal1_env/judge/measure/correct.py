"""Verdicts at `correct` precision: is a built candidate correct? Nothing is timed.

A candidate is prepared like a timed one, without a reference. The judge then calls it on `Pool.untimed_sets` and
compares the whole outputs of each call. Its pool serves this precision only: no timed verdict shares its seeds,
weights and inputs.
"""

from __future__ import annotations

import contextlib

from cudal1_worker import protocol as wire

from cudal1_env.errors import TaskError
from cudal1_env.judge.measure import record
from cudal1_env.judge.measure.builder import Builder
from cudal1_env.judge.measure.case import Built
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.headroom import check_memory
from cudal1_env.judge.measure.prepare import construct, load_weights
from cudal1_env.judge.measure.record import Seen
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.records import Evaluation, Status

UNDECIDED = (Status.OUT_OF_MEMORY, Status.TIMEOUT, Status.CRASH)
"""Statuses that other programs on the device may cause; such a candidate is judged again, alone."""


def judge_correct(builder: Builder, built: Built, pool: Pool) -> Evaluation:
    """Return the verdict on a built candidate and kill its worker. The caller holds the lease.

    If another candidate may have taken the missing memory, the status is one of `UNDECIDED`.
    """
    seen = Seen(pool.secrets.commitment)
    try:
        if built.fault is not None:
            raise built.fault
        _call(builder, built, pool, seen)
    except Fault as fault:
        return record.failed(built, seen, fault)
    return record.untimed(built, seen)


def _call(builder: Builder, built: Built, pool: Pool, seen: Seen) -> None:
    """Construct the candidate, call it, and compare."""
    case, arm = built.case, builder.again(built, pool)
    try:
        with case.watch.phase("warmup"):
            construct(case, pool, arm, seen, contextlib.nullcontext())
        with case.watch.phase("oracle"):
            sets = pool.untimed_sets()
        seen.first_set = sets[-1].index
        with case.watch.phase("warmup"):
            load_weights(pool, arm, seen)
            for number, one in enumerate(sets):
                seen.tally.check(one, arm.verify(one, number % wire.SLOTS))
                seen.tally.full_checks += 1
        check_memory(builder.device, arm)
    except (TaskError, *builder.device.faults):
        check_memory(builder.device, arm)  # blames the candidate if it holds the missing memory
        raise
    finally:
        built.stderr = arm.worker.log
        arm.close()
        built.arm = None
