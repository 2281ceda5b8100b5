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
from cudal1_env.judge.begun import faults_named
from cudal1_env.judge.device.tensors import Expected, decode
from cudal1_env.judge.judge import Judge
from cudal1_env.judge.oracle.numerics import Answer
from cudal1_env.judge.oracle.pool import SEED_BYTES, InputSet, Pool
from cudal1_env.judge.settings import JudgeSettings

Values = npt.NDArray[Any]

_ELEMENTS = 32
"""Elements of each input tensor that are changed: if all are influential, 87 % of the tensor is (99 % confidence)."""
_MAX_TENSORS = 4
"""Maximum number of tensors that are tried, the largest first; nothing is known of the others."""
_OTHERS = 3
"""Further input sets, from which an element takes its new values."""
_MAX_SECONDS = 60.0
"""Seconds after which the search of a task ends with what was tried by then."""


@dataclass(frozen=True)
class KnownSet:
    """One input set with its whole answers, on the host for tasks of any device."""

    seed: int
    """Seed of the inputs."""
    distribution: str
    """Distribution of the inputs (`cudal1_worker.oracle.distributions`)."""
    inputs: tuple[Values, ...]
    """The tensors among the inputs, in order and shape."""
    expected: tuple[Expected, ...]
    """What each output must look like."""
    answers: tuple[Answer, ...]
    """The correct values of each output; `whole` is present."""


class AuditJudge(Judge):
    """A judge that shows its answers, so that a task's checker can be tried. It judges no program for a reward.

    The oracle of the last task that was asked about is kept, for the next question.
    """

    def __init__(self, settings: JudgeSettings | None = None) -> None:
        chosen = {"full_check_share": 1.0, "max_pools": 1}
        super().__init__((settings or JudgeSettings()).model_copy(update=chosen))

    def _known_pool(self, task: Task) -> Pool:
        """The task's pool, whose seed is a hash of the reference: an audit gives the same answer each time."""
        seed = hashlib.sha256(f"audit/{task.source}".encode("utf-8", "replace")).digest()[:SEED_BYTES]
        pool = self._pools.take(self._case(task, "", "training"), seed)
        pool.max_bytes = 0  # each set is asked for once, and other audits may work on the same GPU
        return pool

    @contextmanager
    def _with_room(self, task: Task) -> Generator[None]:
        """Raise `TooLargeError` if the device has too little memory inside the block: nothing else is kept."""
        try:
            with faults_named(self.device):
                yield
        except NoRoomError as error:
            raise TooLargeError(f"{task.id}: too little memory for its inputs and answers ({error})") from error

    def known_sets(self, task: Task, count: int) -> Generator[KnownSet]:
        """Yield input sets as candidates meet them, weights loaded where the task has some; made when asked for.

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
        """Compare a task's outputs with another error factor from now on; None for that of the settings."""
        with self._lock:
            before = self._pools.factors.pop(reference_sha256(task), None)
            if factor is not None:
                self._pools.factors[reference_sha256(task)] = factor
            if factor == before:
                return
            for key in [key for key in self._pools if key[0] == task.id]:
                self._pools.retire(key)

    def known_parts(self, task: Task) -> list[str]:
        """Return what a program may know or leave out: what comes again, what cannot be loaded, what is not shown."""
        with self._with_room(task):
            pool = self._known_pool(task)
            pool.sets(0, 1)  # what elements may err is known then
            spec, (_, again, fixed), work = pool.io_spec, pool.recurrence(), pool.unseen(precision=False)
        constant = [f"constant input {place}" for place in spec.constant_inputs]
        constant += [f"constant output {place}" for place in fixed]
        constant += [f"state {name} that no output shows" for name in spec.changed]
        constant += [work] if work else []
        constant += [f"recurring input {place}" for place in again if place not in spec.constant_inputs]
        return constant + [f"seeded tensor {name} outside the state" for name in spec.seeded]

    def steps(self, task: Task, one: KnownSet) -> dict[str, Any]:
        """Return the reference's steps on a set, and the faults that apply; see `cudal1_worker.oracle.faults`."""
        pool = self._known_pool(task)
        with self._with_room(task):
            return pool.oracle.ask("steps", seed=one.seed, distribution=one.distribution)

    def faulty(
        self, task: Task, one: KnownSet, fault: str, step: int | None = None, *, wide: bool = False
    ) -> list[Values] | str:
        """Return the outputs of a faulty program on a set: flat, in the output's dtype. A text says why there are none.

        Args:
            task: The task.
            one: One of its `known_sets`, while its generator stands there.
            fault: What is done worse; see `cudal1_worker.oracle.faults`.
            step: At which step, or with which input; None for each step.
            wide: Whether the fault is injected into the float64 twin; then the outputs are float64.
        """
        pool = self._known_pool(task)
        with self._with_room(task):
            found, reason = pool.oracle.faulty(
                seed=one.seed, distribution=one.distribution, fault=fault, step=step, wide=wide
            )
            return reason or [self.device.to_host(values) for values in found]

    def step_changes(self, task: Task, one: KnownSet, fault: str, step: int) -> bool:
        """Whether a fault changes its step's own result, on which integer outputs depend, on one of `known_sets`."""
        with self._with_room(task):
            oracle = self._known_pool(task).oracle
            told = oracle.ask("changes", seed=one.seed, distribution=one.distribution, fault=fault, step=step)
            return bool(told["changes"])

    def input_sensitivity(self, task: Task) -> list[tuple[int, int, float]]:
        """Measure the input sensitivity of each tensor, by changing single elements.

        Returns:
            For each tensor: elements that were changed, influential ones among them, and the maximum share that can be
            influential. All zero if the answer changes although no element was changed.

        Raises:
            TaskError: The reference fails.
            MachineError: The machine broke.
        """
        with self._with_room(task):
            return _search(self._known_pool(task))

    def _on_host(self, pool: Pool, one: InputSet) -> KnownSet:
        data = self.device.to_host(one.inputs)
        tensors = [entry["tensor"] for entry in pool.io_spec.entries if "tensor" in entry]
        return KnownSet(
            pool.secrets.number("set", one.index),
            one.distribution,
            tuple(_tensor(data, spec) for spec in tensors),
            pool.io_spec.outputs,
            tuple(self._answer_on_host(answer) for answer in one.answers),
        )

    def _answer_on_host(self, answer: Answer) -> Answer:
        return replace(
            answer,
            whole=self.device.to_host(answer.whole),
            whole_limits=self.device.to_host(answer.whole_limits),
        )


def _search(pool: Pool) -> list[tuple[int, int, float]]:
    secrets, oracle = pool.secrets, pool.oracle
    tensors = [entry["tensor"] for entry in pool.io_spec.entries if "tensor" in entry]
    if pool.io_spec.state:
        pool.weights()
    seeds = [secrets.number("vary", number) for number in range(1 + _OTHERS)]
    most = [float(share) for share in oracle.ask("vary", seeds=seeds)["most"]]

    def changes(tensor: int | None, position: int = 0) -> bool:
        """Whether the float64 answer changes visibly with one element of an input; with None, with nothing at all."""
        return bool(oracle.ask("change", tensor=tensor, position=position)["changes"])

    random = secrets.generator("matter")
    counts = [[0, 0] for _ in tensors]
    largest = sorted(range(len(tensors)), key=lambda number: -tensors[number]["bytes"])[:_MAX_TENSORS]
    ends = time.monotonic() + _MAX_SECONDS
    unmoved = [changes(None) for _ in range(2)]
    for number in [number for _ in range(_ELEMENTS) for number in largest]:  # each gets its share of the seconds
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
