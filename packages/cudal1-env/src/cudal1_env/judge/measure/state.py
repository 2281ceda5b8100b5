"""Matches the judge's weights with the state of a constructed candidate; see `cudal1_env.judge.oracle.state`."""

from __future__ import annotations

from collections.abc import Sequence

from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.judge.oracle.state import Entry, Mapping, match
from cudal1_env.records import Status


def mapped(arm: Arm, pool: Pool, state: Sequence[Entry]) -> Mapping:
    """Match the reference's state with that of a candidate whose constructor has just run.

    Seeded values are compared only where names do not suffice.

    Raises:
        Fault: Something of the reference's has no partner.
    """
    mapping = match(pool.io_spec.state, state)
    if mapping.missing and (similar := mapping.similar):
        mapping = match(pool.io_spec.state, state, (pool.fingerprints(), arm.fingerprints(similar)))
    if mapping.missing:
        raise Fault(Status.WRONG_CONTRACT, mapping.refusal())
    return mapping
