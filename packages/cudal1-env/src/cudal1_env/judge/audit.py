"""What a task's checker knows: input sets with their whole answers, for the audit. No candidate comes here."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from cudal1_data import Task

from cudal1_env.judge.judge import Judge
from cudal1_env.judge.numerics import Answer, Expected, decode
from cudal1_env.judge.pool import SEED_BYTES, InputSet, Pool
from cudal1_env.judge.settings import JudgeSettings

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class KnownSet:
    """One input set with its whole answers, on the host whatever the task's device."""

    distribution: str
    """Distribution of the inputs (`cudal1_worker.distributions`)."""
    inputs: tuple[Values, ...]
    """The tensors among the inputs, in order and shape."""
    expected: tuple[Expected, ...]
    """What each output must look like."""
    answers: tuple[Answer, ...]
    """The right values of each output; `whole` is there."""


class AuditJudge(Judge):
    """A judge that shows its answers, so that a task's checker can be tried. It judges no program for a reward."""

    def __init__(self, settings: JudgeSettings | None = None) -> None:
        super().__init__((settings or JudgeSettings()).model_copy(update={"full_check_share": 1.0}))

    def known_sets(self, task: Task, count: int) -> Generator[KnownSet]:
        """Yield input sets as candidates meet them, weights loaded where the task has some; made when asked for.

        The seed is a hash of the reference: an audit gives the same answer each time.

        Args:
            task: The task.
            count: How many sets.

        Raises:
            TaskError: The reference cannot be judged against.
            MachineError: The machine broke.
        """
        seed = hashlib.sha256(f"audit/{task.source}".encode("utf-8", "replace")).digest()[:SEED_BYTES]
        pool = self._pool(self._case(task, "", "training"), seed)
        try:
            mode = "loaded" if pool.anatomy.state else "seeded"
            for number in range(count):
                yield self._on_host(pool, pool.sets(mode, number, number + 1)[0])
        finally:
            self._retire((task.id, seed.hex()))

    def _on_host(self, pool: Pool, one: InputSet) -> KnownSet:
        data = self.device.to_host(one.inputs)
        tensors = [entry["tensor"] for entry in pool.anatomy.entries if "tensor" in entry]
        return KnownSet(
            one.distribution,
            tuple(_tensor(data, spec) for spec in tensors),
            pool.anatomy.outputs,
            tuple(self._answer_on_host(answer) for answer in one.answers),
        )

    def _answer_on_host(self, answer: Answer) -> Answer:
        scales = answer.row_scales
        return replace(
            answer,
            whole=self.device.to_host(answer.whole),
            row_scales=None if scales is None else self.device.to_host(scales),
        )


def _tensor(data: npt.NDArray[np.uint8], spec: dict[str, Any]) -> Values:
    """Return an input as an array of its shape; see `cudal1_worker.layout.manifest`."""
    flat = decode(data[spec["offset"] : spec["offset"] + spec["bytes"]], spec["dtype"])
    strides = [stride * flat.itemsize for stride in spec["strides"]]
    return np.lib.stride_tricks.as_strided(flat, spec["shape"], strides, writeable=False)
