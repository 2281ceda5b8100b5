"""Repeat an evaluation from its record: same seed, hence same inputs, answers and checks; only the timing is new."""

from __future__ import annotations

import contextlib
import hashlib

from cudal1_data import Task
from pydantic import BaseModel, ConfigDict

from cudal1_env.errors import RecordError
from cudal1_env.judge import Judge
from cudal1_env.judge.oracle.pool import SEED_BYTES
from cudal1_env.records import PROTOCOL_VERSION, Evaluation


class Replay(BaseModel):
    """An evaluation next to its repetition."""

    model_config = ConfigDict(frozen=True)

    recorded: Evaluation
    """The recorded evaluation."""
    repeated: Evaluation
    """The repetition."""
    same_status: bool
    """Whether the statuses agree."""
    same_tolerances: bool
    """Whether the seed reproduced the inputs and answers. Compares the reference errors bit for bit on the input sets
    that determine them, over every distribution that both evaluations reached (timing decides how many calls they
    make).
    """
    overlap: bool | None
    """Whether the speedup intervals overlap; None if either evaluation has none."""


def replay(judge: Judge, record: Evaluation) -> Replay:
    """Judge the recorded candidate again under the recorded seed.

    Raises:
        RecordError: The record holds no seed, or another than it is committed to, or is of another protocol version.
    """
    if record.protocol != PROTOCOL_VERSION:
        raise RecordError(
            f"the record is of protocol {record.protocol}, not {PROTOCOL_VERSION}; use that version's cudal1"
        )
    if record.seed is None:
        raise RecordError("the record holds only the commitment to its seed; `Judge.retire` discloses the seed")
    task = Task(id=record.task, source=record.task_source, name=record.task, level=1, origin="record")
    seed = _seed(record.seed, record.seed_commitment)
    repeated = judge.evaluate(task, record.source, precision=record.precision, seed=seed, first_set=record.first_set)
    overlap = None
    if record.speedup is not None and repeated.speedup is not None:
        overlap = record.speedup.low <= repeated.speedup.high and repeated.speedup.low <= record.speedup.high
    return Replay(
        recorded=record,
        repeated=repeated,
        same_status=record.status is repeated.status,
        same_tolerances=_same_tolerances(record, repeated),
        overlap=overlap,
    )


def _seed(text: str, commitment: str | None) -> bytes:
    with contextlib.suppress(ValueError):  # not hexadecimal
        seed = bytes.fromhex(text)
        if len(seed) == SEED_BYTES and hashlib.sha256(seed).hexdigest() == commitment:
            return seed
    raise RecordError(f"the record's seed is not the one of its commitment {commitment}, so the record was changed")


def _same_tolerances(record: Evaluation, repeated: Evaluation) -> bool:
    one, other = ({(e.output, e.distribution): e for e in record.errors} for record in (record, repeated))
    if bool(one) != bool(other):
        return False
    return all(one[key].reference_error == other[key].reference_error for key in one.keys() & other.keys())
