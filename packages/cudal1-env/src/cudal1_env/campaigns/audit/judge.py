"""Input sets with their whole answers, for the audit of a task's checker. No candidate is judged here."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from cudal1_data import Task

from cudal1_env.errors import NoRoomError, TooLargeError
from cudal1_env.gate import reference_sha256
from cudal1_env.judge.device.tensors import Expected, decode
from cudal1_env.judge.judge import Judge
from cudal1_env.judge.oracle import replies
from cudal1_env.judge.oracle.numerics import Answer
from cudal1_env.judge.oracle.pool import SEED_BYTES, Pool
from cudal1_env.judge.oracle.samples import InputSet
from cudal1_env.judge.settings import JudgeSettings

Values = npt.NDArray[Any]

_ELEMENTS = 32
"""Number of elements of each input tensor that are changed. If all 32 are influential, at least 87 % of the tensor is
(99 % confidence).
"""
_MAX_TENSORS = 4
"""Maximum number of tensors that are tested, the largest first; nothing is known about the others."""
_OTHERS = 3
"""Number of further input sets that supply the new values of an element."""
_MAX_SECONDS = 60.0
"""Time limit for a task's search, in seconds; the search then ends with the elements tested so far."""


@dataclass(frozen=True)
class KnownSet:
    """One input set with its whole answers, in host memory for tasks of any device."""

    seed: int
    """Seed of the inputs."""
    distribution: str
    """Distribution of the inputs (`cudal1_worker.oracle.distributions`)."""
    inputs: tuple[Values, ...]
    """The tensors among the inputs, in order and in their shape."""
    expected: tuple[Expected, ...]
    """Expected shape, dtype and layout of each output."""
    answers: tuple[Answer, ...]
    """The correct values of each output; `whole` is present."""


class AuditJudge(Judge):
    """A judge that shows its answers, for the audit of a task's checker. It judges no program for a reward.

    It keeps the oracle of the last task for the next request.
    """

    def __init__(self, settings: JudgeSettings | None = None) -> None:
        chosen = {"full_check_share": 1.0, "max_pools": 1}
        super().__init__((settings or JudgeSettings()).model_copy(update=chosen))

    def _known_pool(self, task: Task) -> Pool:
        """Return the task's pool. Its seed is a hash of the reference, so an audit gives the same result each time."""
        seed = hashlib.sha256(f"audit/{task.source}".encode("utf-8", "replace")).digest()[:SEED_BYTES]
        pool = self._pools.take(self._case(task, "", "training", seed))
        pool.max_bytes = 0  # each set is requested once, and other audits may use the same GPU
        return pool

    @contextmanager
    def _with_room(self, task: Task) -> Generator[None]:
        """Raise `TooLargeError` if the device lacks memory inside the block, where no other task's pool is kept."""
        try:
            with self.device.faults_named():
                yield
        except NoRoomError as error:
            raise TooLargeError(f"{task.id}: too little memory for its inputs and answers ({error})") from error

    def known_sets(self, task: Task, count: int) -> Generator[KnownSet]:
        """Yield input sets as candidates get them, with weights loaded if the task has some; each is made on request.

        Raises:
            TaskError: The reference cannot be judged against.
            MachineError: The machine broke.
        """
        pool = self._known_pool(task)
        for number in range(count):
            with self._with_room(task):
                one = self._on_host(pool, pool.sets(number, number + 1)[0])
            yield one

    def use_factor(self, task: Task, factor: float | None) -> None:
        """Compare a task's outputs with another error factor from now on; None restores the factor of the settings."""
        with self._lock:
            before = self._pools.factors.pop(reference_sha256(task), None)
            if factor is not None:
                self._pools.factors[reference_sha256(task)] = factor
            if factor == before:
                return
            for key in [key for key in self._pools if key[0] == task.id]:
                self._pools.retire(key)

    def known_parts(self, task: Task) -> list[str]:
        """Return what a program could keep or omit (`Pool.doubts`), on draws that depend on the reference alone."""
        with self._with_room(task):
            pool = self._known_pool(task)
            pool.sets(0, 1)  # determines the tolerances first
            return pool.doubts()

    def steps(self, task: Task, one: KnownSet) -> list[replies.Step]:
        """Return the reference's steps on a set and the applicable faults; see `cudal1_worker.oracle.faults`."""
        pool = self._known_pool(task)
        with self._with_room(task):
            return pool.oracle.ask("steps", replies.Steps, seed=one.seed, distribution=one.distribution).steps

    def faulty(
        self, task: Task, one: KnownSet, fault: str, step: int | None = None, *, wide: bool = False
    ) -> list[Values] | str:
        """Return the outputs of the reference, or of its float64 twin, with a fault on a set, or why there are none.

        See `cudal1_worker.oracle.faults.FaultyRuns.faulty`.
        """
        pool = self._known_pool(task)
        with self._with_room(task):
            found, reason = pool.oracle.faulty(
                seed=one.seed, distribution=one.distribution, fault=fault, step=step, wide=wide
            )
            return reason or [self.device.to_host(values) for values in found]

    def step_changes(self, task: Task, one: KnownSet, fault: str, step: int) -> bool:
        """Return whether a fault changes its step's own result, on which integer outputs depend, on a known set."""
        with self._with_room(task):
            oracle = self._known_pool(task).oracle
            answer = oracle.ask(
                "changes", replies.Changed, seed=one.seed, distribution=one.distribution, fault=fault, step=step
            )
            return answer.changes

    def input_sensitivity(self, task: Task) -> list[tuple[int, int, float]]:
        """Measure the input sensitivity of each tensor, by changing single elements.

        Returns:
            For each tensor: the number of changed elements, the number of influential ones among them, and the maximum
                share that can be influential. All zero if the answer changes although no element was changed.

        Raises:
            TaskError: The reference fails.
            MachineError: The machine broke.
        """
        with self._with_room(task):
            return _search(self._known_pool(task))

    def _on_host(self, pool: Pool, one: InputSet) -> KnownSet:
        data = self.device.to_host(one.inputs)
        tensors = [entry["tensor"] for entry in pool.io_spec.layout if "tensor" in entry]
        return KnownSet(
            pool.secrets.number("set", one.index),
            one.distribution,
            tuple(_tensor(data, spec) for spec in tensors),
            pool.io_spec.outputs,
            tuple(self._answer_on_host(answer) for answer in one.widened()),
        )

    def _answer_on_host(self, answer: Answer) -> Answer:
        return replace(
            answer,
            whole=self.device.to_host(answer.whole),
            whole_limits=self.device.to_host(answer.whole_limits),
        )


def _search(pool: Pool) -> list[tuple[int, int, float]]:
    secrets, oracle = pool.secrets, pool.oracle
    tensors = [entry["tensor"] for entry in pool.io_spec.layout if "tensor" in entry]
    if pool.io_spec.state:
        pool.weights()
    seeds = [secrets.number("vary", number) for number in range(1 + _OTHERS)]
    most = oracle.ask("vary", replies.Varied, seeds=seeds).most
    if len(most) != len(tensors):
        raise oracle.disturbed("vary", "expected a share of each input tensor")

    def changes(tensor: int | None, position: int = 0) -> bool:
        """Return whether the float64 answer visibly changes with one input element; None changes nothing."""
        return oracle.ask("change", replies.Changed, tensor=tensor, position=position).changes

    random = secrets.generator("matter")
    counts = [[0, 0] for _ in tensors]
    largest = sorted(range(len(tensors)), key=lambda number: -tensors[number]["bytes"])[:_MAX_TENSORS]
    ends = time.monotonic() + _MAX_SECONDS
    unmoved = [changes(None) for _ in range(2)]
    for number in [number for _ in range(_ELEMENTS) for number in largest]:  # tensors take turns
        size = math.prod(tensors[number]["shape"])
        if size and time.monotonic() < ends and not any(unmoved):
            counts[number][0] += 1
            counts[number][1] += changes(number, int(random.integers(size)))
    if any(unmoved) or changes(None):
        return [(0, 0, 0.0) for _ in tensors]
    return [(tested, influential, share) for (tested, influential), share in zip(counts, most, strict=True)]


def _tensor(data: npt.NDArray[np.uint8], spec: dict[str, Any]) -> Values:
    """Return an input as an array of its shape; see `cudal1_worker.layout.manifest`."""
    flat = decode(data[spec["offset"] : spec["offset"] + spec["bytes"]], spec["dtype"])
    strides = [stride * flat.itemsize for stride in spec["strides"]]
    return np.lib.stride_tricks.as_strided(flat, spec["shape"], strides, writeable=False)
