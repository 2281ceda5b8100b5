"""The oracle, seen from the judge: what a task looks like, and single-use input sets with their answers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from cudal1_data import Task
from cudal1_worker import protocol as wire
from cudal1_worker.sandbox import Spec

from cudal1_env.errors import TaskError, WorkerLostError
from cudal1_env.judge.memory import SharedBlock, sealed_file
from cudal1_env.judge.numerics import EPSILON, Expected
from cudal1_env.judge.workers import Dead, Late, Worker, Zygote

_PAGE = 4096


@dataclass(frozen=True)
class Anatomy:
    """What a task's inputs, arguments, state and outputs look like."""

    arguments: Any
    """Constructor arguments, encoded (see `cudal1_worker.layout.encode`)."""
    state: list[list[Any]]
    """`[name, shape, dtype]` for each tensor of the reference's state."""
    entries: list[dict[str, Any]]
    """Manifest of the inputs."""
    input_bytes: int
    """Size of an input set."""
    outputs: tuple[Expected, ...]
    """What each output must look like."""
    defaults: tuple[str, ...] = ()
    """Names of its state that a constructor fills with a constant or with zeros: what a program could leave out."""


@dataclass(frozen=True)
class Weights:
    """State that the judge loads into every arm."""

    names: list[str]
    entries: list[dict[str, Any]]
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RawSet:
    """One input set as the oracle made it."""

    inputs: npt.NDArray[np.uint8]
    answers: list[npt.NDArray[np.float64] | npt.NDArray[np.int64]]
    reports: list[dict[str, Any]]


class OracleClient:
    """Talks to the oracle process of one task.

    Args:
        zygote: Where the process is forked.
        spec: Its sandbox.
        task: Whose reference it runs.
        seed: Seed of the constructor.
        timeout_s: Limit for each answer.

    Raises:
        TaskError: The reference cannot be imported or called, or is random.
    """

    def __init__(self, zygote: Zygote, spec: Spec, task: Task, *, seed: int, timeout_s: float) -> None:
        self.task = task
        self._timeout_s = timeout_s
        self.worker: Worker = zygote.fork("oracle", spec)
        self._block: SharedBlock | None = None
        try:
            with sealed_file(task.source.encode("utf-8", "replace")) as fd:
                self._ask({"op": "build"}, [fd])
            answer = self._ask({"op": "describe", "seed": seed})
            if answer["random"]:
                raise TaskError(
                    f"{task.id}: expected an output that is a function of the inputs, two calls on the same inputs "
                    "differ; random tasks give no reward"
                )
            outputs = tuple(
                Expected(tuple(out["shape"]), out["dtype"], bool(out["aliases"])) for out in answer["outputs"]
            )
            for out in outputs:
                if out.dtype.startswith("complex"):
                    raise TaskError(
                        f"{task.id}: expected real outputs, got {out.dtype}; return real and imaginary part"
                    )
            self.anatomy = Anatomy(
                answer["arguments"],
                answer["state"],
                answer["inputs"],
                answer["bytes"],
                outputs,
                tuple(answer["defaults"]),
            )
        except BaseException:
            self.close()
            raise

    def _ask(self, message: dict[str, Any], fds: list[int] | None = None) -> dict[str, Any]:
        try:
            answer = self.worker.ask(message, fds or [], timeout_s=self._timeout_s)
        except Dead as error:
            if error.how.get("signal") == 9:
                raise WorkerLostError(f"{self.task.id}: the oracle was killed") from None
            raise TaskError(f"{self.task.id}: the reference ended its process ({error}) in {message['op']}") from None
        except Late:
            raise TaskError(
                f"{self.task.id}: the reference took over {self._timeout_s:g} s in {message['op']}"
            ) from None
        except wire.BadMessage as error:
            raise TaskError(f"{self.task.id}: the reference disturbs its channel in {message['op']}: {error}") from None
        if "error" in answer:
            raise TaskError(f"{self.task.id}: the reference failed in {message['op']}: {answer['text']}")
        return answer

    def weights(self, seed: int, values_seed: int) -> Weights:
        """Make non-default weights, and models in the oracle that hold them.

        Args:
            seed: Seed of the constructor.
            values_seed: Seed of the values.
        """
        with SharedBlock(_PAGE, sealed=False) as block:
            answer = self._ask({"op": "state", "seed": seed, "values_seed": values_seed}, [block.fd])
            size = int(answer["bytes"])
            data = np.frombuffer(os.pread(block.fd, size, 0), dtype=np.uint8)
            while data.size < size:
                more = np.frombuffer(os.pread(block.fd, size - data.size, data.size), dtype=np.uint8)
                data = np.concatenate([data, more])
        return Weights(list(answer["names"]), list(answer["entries"]), data)

    def make(self, seed: int, distribution: str, weights: str, *, reference_error: bool) -> RawSet:
        """Make one input set with its answers.

        Args:
            seed: Single-use seed.
            distribution: One of `cudal1_worker.distributions.NAMES`.
            weights: `loaded` or `seeded`.
            reference_error: Whether the reference's own error is wanted too.
        """
        made = self._ask(
            {
                "op": "make",
                "seed": seed,
                "distribution": distribution,
                "weights": weights,
                "reference_error": reference_error,
            }
        )
        answers_at = self.anatomy.input_bytes
        size = answers_at + max(int(made["answer_bytes"]), 8)
        size = -(-size // _PAGE) * _PAGE
        if self._block is None or self._block.size_bytes < size:
            if self._block is not None:
                self._block.close()
            self._block = SharedBlock(size, sealed=False)
        self._ask({"op": "write", "bytes": self._block.size_bytes, "answers_at": answers_at}, [self._block.fd])
        data = self._block.bytes
        answers: list[npt.NDArray[np.float64] | npt.NDArray[np.int64]] = []
        offset = answers_at
        for out in self.anatomy.outputs:
            raw = data[offset : offset + 8 * out.size].copy()
            answers.append(raw.view(np.float64) if out.dtype in EPSILON else raw.view(np.int64))
            offset += 8 * out.size
        return RawSet(data[:answers_at].copy(), answers, made["outputs"])

    def close(self) -> None:
        """End the process."""
        self.worker.close()
        if self._block is not None:
            self._block.close()
            self._block = None
