"""The oracle, seen from the judge: what a task looks like, and single-use input sets with their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from cudal1_data import Task
from cudal1_worker import protocol as wire
from cudal1_worker.sandbox import Spec

from cudal1_env.errors import TaskError, TooLargeError, WorkerLostError
from cudal1_env.judge.device.base import Block, Device
from cudal1_env.judge.device.memory import sealed_file
from cudal1_env.judge.device.tensors import EPSILON, Array, Expected
from cudal1_env.judge.workers.worker import Dead, Late, Worker, Zygote

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
    work_bytes: int = 0
    """Memory of a GPU that a call of the reference takes at most, its outputs among it."""

    @property
    def tensor_bytes(self) -> list[int]:
        """Size of each input tensor."""
        return [int(entry["tensor"]["bytes"]) for entry in self.entries if "tensor" in entry]

    @property
    def written_bytes(self) -> int:
        """Size of all outputs that are not inputs."""
        return sum(out.size * out.item_bytes for out in self.outputs if not out.aliases)


@dataclass(frozen=True)
class Weights:
    """State that the judge loads into every arm."""

    names: list[str]
    entries: list[dict[str, Any]]
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RawSet:
    """One input set as the oracle made it."""

    inputs: Array
    """Bytes, shape (input_bytes,); in memory of the device."""
    answers: list[Array]
    """float64 or int64, flat; views of memory that the next set overwrites."""
    reports: list[dict[str, Any]]


class OracleClient:
    """Talks to the oracle process of one task.

    Args:
        zygote: Where the process is forked.
        spec: Its sandbox.
        device: Where the reference runs.
        task: Whose reference it runs.
        seed: Seed of the constructor.
        timeout_s: Limit for each answer.

    Raises:
        TaskError: The reference cannot be imported or called, or is random.
    """

    def __init__(self, zygote: Zygote, spec: Spec, device: Device, task: Task, *, seed: int, timeout_s: float) -> None:
        self.task = task
        self._timeout_s = timeout_s
        self._device = device
        self.worker: Worker = zygote.fork("oracle", spec)
        self._block: Block | None = None
        try:
            with sealed_file(task.source.encode("utf-8", "replace")) as fd:
                self._ask({"op": "build", "device": device.name, "tf32": device.tf32}, [fd])
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
                answer["work_bytes"],
            )
            self.rest()
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
            text = f"{self.task.id}: the reference failed in {message['op']}: {answer['text']}"
            raise TooLargeError(text) if answer["error"] == "memory" else TaskError(text)
        return answer

    def weights(self, seed: int, values_seed: int) -> Weights:
        """Make non-default weights, and models in the oracle that hold them.

        Args:
            seed: Seed of the constructor.
            values_seed: Seed of the values.
        """
        answer = self._ask({"op": "state", "seed": seed, "values_seed": values_seed})
        size = int(answer["bytes"])
        block = self._memory(size)
        self._ask({"op": "write"})
        return Weights(list(answer["names"]), list(answer["entries"]), self._device.to_host(block[:size]))

    def make(self, sets: Sequence[tuple[int, str]], weights: str) -> list[RawSet]:
        """Make input sets with their answers and the reference's own errors; `most_at_once` may be asked for.

        Args:
            sets: Single-use seed and distribution (`cudal1_worker.distributions.NAMES`) of each.
            weights: `loaded` or `seeded`.
        """
        answers_at, stride = self.anatomy.input_bytes, self.set_bytes
        block = self._memory(stride * len(sets))
        made = self._ask(
            {
                "op": "make",
                "sets": [{"seed": seed, "distribution": name} for seed, name in sets],
                "weights": weights,
                "stride": stride,
                "answers_at": answers_at,
                "answer_bytes": 8 * sum(out.size for out in self.anatomy.outputs),
            }
        )
        result: list[RawSet] = []
        for number, reports in enumerate(made["reports"]):
            data = block[stride * number : stride * (number + 1)]
            result.append(RawSet(self._device.copy(data[:answers_at]), self._answers(data), reports))
        return result

    @property
    def most_at_once(self) -> int:
        """How many sets may be made in one go: each time the judge and the oracle take turns on a GPU costs."""
        return max(1, self._device.at_once_bytes // self.set_bytes)

    @property
    def set_bytes(self) -> int:
        """Memory of a set with its whole answers."""
        size = self.anatomy.input_bytes + 8 * sum(out.size for out in self.anatomy.outputs)
        return -(-size // _PAGE) * _PAGE

    def vary(self, seeds: Sequence[int], weights: str) -> list[float]:
        """Make inputs of which single elements are then changed.

        Args:
            seeds: Of the inputs, then of other sets, from which new values are taken.
            weights: `loaded` or `seeded`.

        Returns:
            For each input tensor the largest share of its elements that can matter.
        """
        return [float(share) for share in self._ask({"op": "vary", "seeds": list(seeds), "weights": weights})["most"]]

    def changes(self, tensor: int | None, position: int = 0) -> bool:
        """Whether the float64 answer changes visibly with one element of an input; with None, with nothing at all."""
        return bool(self._ask({"op": "change", "tensor": tensor, "position": position})["changes"])

    def steps(self, seed: int, distribution: str, weights: str) -> dict[str, Any]:
        """Ask for the reference's steps on one input set, and the faults that apply; see `cudal1_worker.faults`."""
        return self._ask({"op": "steps", "seed": seed, "distribution": distribution, "weights": weights})

    def faulty(
        self, seed: int, distribution: str, weights: str, fault: str, step: int | None, *, wide: bool
    ) -> tuple[list[Array], str]:
        """Run the reference with a fault on one input set.

        Args:
            seed: Of the set.
            distribution: Of the set.
            weights: `loaded` or `seeded`.
            fault: What is done worse.
            step: Number of the step or input; None for each step.
            wide: Whether the float64 twin runs instead.

        Returns:
            Its outputs as float64 or int64, flat, views of memory that the next set overwrites; and why there are none.
        """
        block = self._memory(self.set_bytes)
        answer = self._ask(
            {
                "op": "faulty",
                "seed": seed,
                "distribution": distribution,
                "weights": weights,
                "fault": fault,
                "step": step,
                "wide": wide,
                "answers_at": self.anatomy.input_bytes,
                "answer_bytes": 8 * sum(out.size for out in self.anatomy.outputs),
            }
        )
        return ([] if answer["failed"] else self._answers(block)), answer["failed"]

    def _answers(self, data: Array) -> list[Array]:
        """The whole answers of a set that lies in some memory: views of it."""
        answers: list[Array] = []
        offset = self.anatomy.input_bytes
        for out in self.anatomy.outputs:
            raw = data[offset : offset + 8 * out.size]
            answers.append(self._device.view(raw, "float64" if out.dtype in EPSILON else "int64"))
            offset += 8 * out.size
        return answers

    def rest(self) -> None:
        """Let the oracle give back memory that it only keeps."""
        self._ask({"op": "rest"})

    def held_bytes(self) -> int:
        """Memory of a GPU that the oracle's process holds, as it says."""
        return int(self._ask({"op": "held"})["bytes"])

    def _memory(self, size_bytes: int) -> Array:
        """Memory of the judge's that the oracle writes, at least as large as asked for."""
        if self._block is None or self._block.size_bytes < size_bytes:
            if self._block is not None:
                self._block.close()
                self._block = None
            block = self._device.block(-(-size_bytes // _PAGE) * _PAGE)
            try:
                self._ask({"op": "block", "bytes": block.size_bytes}, [block.fd])
            except BaseException:
                block.close()
                raise
            self._block = block
        return self._block.bytes

    def close(self) -> None:
        """End the process."""
        self.worker.close()
        if self._block is not None:
            self._block.close()
            self._block = None
