"""Steps before a candidate's compared calls: a private first call, matching its state, loading weights.

They raise `Fault` if the candidate fails.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from cudal1_env.judge.measure.arm import Arm
from cudal1_env.judge.measure.case import Case
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.measure.precompile import is_precompiled
from cudal1_env.judge.measure.record import Seen
from cudal1_env.judge.oracle.pool import Pool, private_seed
from cudal1_env.judge.oracle.state import match
from cudal1_env.records import Status


def construct(case: Case, pool: Pool, candidate: Arm, seen: Seen, alone: AbstractContextManager[object]) -> None:
    """Construct the candidate's model and match its state.

    Before the first trial of an evaluation, the candidate is constructed and called once on inputs and weights drawn
    for it alone; messages may show its text until then. (Precompiled programs were called so then.)
    Afterwards its text is withheld, because the task's later candidates receive the same secrets. `alone` is held
    during the call, in which a program may choose its fastest kernels.
    """
    if not seen.trials and case.role == "candidate" and not is_precompiled(case):
        candidate.construct(private_seed())
        inputs = pool.private_inputs()
        with alone:
            candidate.answers(inputs)
    theirs, state = pool.io_spec.state, candidate.construct(pool.construct_seed)
    mapping = match(theirs, state)
    if mapping.missing and (similar := mapping.similar):  # compare seeded values only if names do not suffice
        mapping = match(theirs, state, (pool.fingerprints(), candidate.fingerprints(similar)))
    if mapping.missing:
        raise Fault(Status.WRONG_CONTRACT, mapping.refusal())
    candidate.withhold()
    candidate.freeze()
    if theirs:
        seen.mapping = mapping


def load_weights(pool: Pool, candidate: Arm, seen: Seen) -> None:
    """Load the judge's weights into a constructed candidate, if the task has any."""
    if seen.mapping is not None and seen.mapping.pairs:
        candidate.load(pool.weights().renamed(seen.mapping.pairs))
