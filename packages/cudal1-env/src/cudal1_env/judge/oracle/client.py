"""The oracle, seen from the judge: the I/O specification of a task, and single-use input sets with their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from cudal1_data import Task
from cudal1_worker import protocol as wire
from cudal1_worker.sandbox import Spec

from cudal1_env.errors import TaskError, TooLargeError, WorkerLostError
from cudal1_env.judge.device.base import Block, Device
from cudal1_env.judge.device.memory import sealed_file
from cudal1_env.judge.device.tensors import Array, Expected
from cudal1_env.judge.oracle.state import Entry, Fingerprints, parse_fingerprints, parse_state
from cudal1_env.judge.workers.worker import Dead, Late, Worker
from cudal1_env.judge.workers.zygote import Zygote

_PAGE = 4096


@dataclass(frozen=True)
class IoSpec:
    """I/O specification of a task: shapes, dtypes and bytes of its inputs, arguments, state and outputs."""

    arguments: Any
    """Constructor arguments, encoded (see `cudal1_worker.layout.encode`)."""
    state: tuple[Entry, ...]
    """The tensors of the reference's state, in order of registration."""
    entries: list[dict[str, Any]]
    """Manifest of the inputs."""
    input_bytes: int
    """Size of an input set."""
    outputs: tuple[Expected, ...]
    """Form of each output."""
    work_bytes: int = 0
    """Peak GPU memory of a call of the reference, its outputs included."""
    constant_inputs: tuple[int, ...] = ()
    """Places of the tensors among the inputs that are the same under different seeds: their values are no secret."""
    seeded: tuple[str, ...] = ()
    """Tensors that the reference's constructor draws and keeps outside its state: the judge cannot load
    others, so a program may use their structure."""
    changed: tuple[str, ...] = ()
    """Tensors of the reference's state that its calls change, those of batch norms left out."""

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

    def renamed(self, pairs: dict[str, str]) -> Weights:
        """Return the weights that a candidate has, under its own names."""
        there = [(pairs[name], entry) for name, entry in zip(self.names, self.entries, strict=True) if name in pairs]
        return replace(self, names=[name for name, _ in there], entries=[entry for _, entry in there])


@dataclass(frozen=True)
class Request:
    """A request for an input set."""

    seed: int
    """Single-use."""
    distribution: str
    """One of `cudal1_worker.oracle.distributions.NAMES`."""
    positions: list[npt.NDArray[np.int64]]
    """Elements of each output whose limits are wanted, shape (n,)."""
    whole: bool
    """Whether those of all elements are wanted."""


@dataclass(frozen=True)
class RawSet:
    """One input set as the oracle made it."""

    inputs: Array
    """Bytes, shape (input_bytes,); in memory of the device."""
    answers: list[Array]
    """float64 or int64, flat; views of memory that the next set overwrites."""
    limits: list[Array]
    """What elements may err (float32 or float64), or what else they may be (int64), of all of them or of those at the
    positions that were asked for; the same kind of views."""
    reports: list[dict[str, Any]]


class RaisedError(TaskError):
    """The reference raised an exception; the oracle answers further questions."""


class OracleClient:
    """Talks to the oracle process of one task.

    Methods raise `TaskError` where the reference fails or is late, `WorkerLostError` where the machine killed it.

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
                self.ask("build", [fd], device=device.name, tf32=device.tf32)
            answer = self.ask("describe", seed=seed)
            if not answer["repeat"]:
                raise TaskError(
                    f"{task.id}: get_inputs() must draw from generators that the judge seeds; two calls under "
                    "one seed differ; draw by torch, random or numpy.random"
                )
            if answer["known"]:
                raise TaskError(
                    f"{task.id}: inputs must differ from call to call; all floating-point (or all) tensors of "
                    "get_inputs() are the same under different seeds, so answers could be kept; draw them at random"
                )
            if answer["random"]:
                raise TaskError(
                    f"{task.id}: the output must be a function of the inputs; two calls on the same inputs "
                    "differ; random tasks give no reward"
                )
            outputs = tuple(
                Expected(tuple(out["shape"]), out["dtype"], bool(out["aliases"]), tuple(out["strides"]))
                for out in answer["outputs"]
            )
            for out in outputs:
                if out.dtype.startswith("complex"):
                    raise TaskError(
                        f"{task.id}: expected real outputs, got {out.dtype}; return real and imaginary part"
                    )
            self.io_spec = IoSpec(
                answer["arguments"],
                tuple(replace(one, fixed=one.name in answer["fixed"]) for one in parse_state(answer["state"])),
                answer["inputs"],
                answer["bytes"],
                outputs,
                answer["work_bytes"],
                tuple(answer["constant"]),
                tuple(answer["seeded"]),
                tuple(answer["changed"]),
            )
            self.rest()
        except BaseException:
            self.close()
            raise

    def ask(self, op: str, fds: Sequence[int] = (), **message: Any) -> dict[str, Any]:
        """Ask the oracle; its handlers (`cudal1_worker.oracle.oracle`) say what each operation takes and answers."""
        try:
            answer = self.worker.ask({"op": op, **message}, fds, timeout_s=self._timeout_s)
        except Dead as error:
            if error.how.get("signal") == 9:
                raise WorkerLostError(f"{self.task.id}: the oracle was killed") from None
            raise TaskError(f"{self.task.id}: the reference ended its process ({error}) in {op}") from None
        except Late:
            raise TaskError(f"{self.task.id}: the reference took over {self._timeout_s:g} s in {op}") from None
        except wire.BadMessage as error:
            raise TaskError(f"{self.task.id}: the reference disturbs its channel in {op}: {error}") from None
        if "error" in answer:
            text = f"{self.task.id}: the reference failed in {op}: {answer['text']}"
            raise TooLargeError(text) if answer["error"] == "memory" else RaisedError(text)
        return answer

    def weights(self, seed: int, values_seed: int) -> Weights:
        """Make non-default weights, and models in the oracle that hold them."""
        answer = self.ask("state", seed=seed, values_seed=values_seed)
        size = int(answer["bytes"])
        block = self._memory(size)
        self.ask("write")
        return Weights(list(answer["names"]), list(answer["entries"]), self._device.to_host(block[:size]))

    def fingerprints(self, seed: int) -> Fingerprints:
        """Fingerprints of the state that the reference's constructor makes under a seed."""
        return parse_fingerprints(self.ask("fingerprints", seed=seed)["fingerprints"])

    def probe(self, seeds: Sequence[int], limits: Sequence[Sequence[float]]) -> None:
        """Let the oracle learn the reference's typical errors; before the first set.

        Args:
            seeds: Of the inputs that tell them.
            limits: Factor, floor and least tolerance of each output; see `cudal1_worker.oracle.tolerance.Limits`.
        """
        self.ask("probe", seeds=list(seeds), limits=[*map(list, limits)], answer_bytes=self._answer_bytes)

    def recurrence(self, seeds: Sequence[int]) -> tuple[list[float], list[int], list[int]]:
        """Return what of each output comes again in some two of the sets of seeds, as bytes to move over its own.

        Returns:
            These shares, the places of inputs of which something comes again, and those of outputs that are the same in
            all sets (`cudal1_worker.oracle.recurrence`).
        """
        told = self.ask("recurrence", seeds=list(seeds))
        return (
            [float(share) for share in told["outputs"]],
            list(map(int, told["inputs"])),
            list(map(int, told["fixed"])),
        )

    def make(self, sets: Sequence[Request]) -> list[RawSet]:
        """Make input sets with their answers and what elements may err; `max_at_once` may be asked for."""
        answers_at, stride = self.io_spec.input_bytes, self.set_bytes
        block = self._memory(stride * len(sets))
        wanted = [asdict(one) | {"positions": [positions.tolist() for positions in one.positions]} for one in sets]
        made = self.ask("make", sets=wanted, stride=stride, answers_at=answers_at, answer_bytes=self._answer_bytes)
        return [
            self._raw(one, block[stride * number : stride * (number + 1)], reports)
            for number, (one, reports) in enumerate(zip(sets, made["reports"], strict=True))
        ]

    def _raw(self, one: Request, data: Array, reports: list[dict[str, Any]]) -> RawSet:
        """Return a set as it lies in memory, see `cudal1_worker.oracle.oracle.Oracle.make`."""
        limits: list[Array] = []
        offset = self.io_spec.input_bytes + self._answer_bytes
        for out, positions in zip(self.io_spec.outputs, one.positions, strict=True):
            size = out.limit_bytes * (out.size if one.whole else positions.size)
            raw = data[offset : offset + size]
            kind = "int64" if not out.floating else "float64" if out.limit_bytes == 8 else "float32"
            limits.append(self._device.view(raw, kind))
            offset += -(-size // 8) * 8
        return RawSet(self._device.copy(data[: self.io_spec.input_bytes]), self._answers(data), limits, reports)

    @property
    def _answer_bytes(self) -> int:
        return 8 * sum(out.size for out in self.io_spec.outputs)

    def draw(self, seed: int) -> Array:
        """Make one set of inputs of the task's own distribution, without answers.

        Returns:
            Bytes, shape (input_bytes,); in memory of the device.
        """
        block = self._memory(self.io_spec.input_bytes)
        self.ask("draw", seed=seed)
        return self._device.copy(block[: self.io_spec.input_bytes])

    @property
    def max_at_once(self) -> int:
        """How many sets are made per request: each switch of the GPU between judge and oracle costs time."""
        return max(1, self._device.at_once_bytes // self.set_bytes)

    @property
    def set_bytes(self) -> int:
        """Memory of a set with its whole answers and limits."""
        limits = sum(-(-out.limit_bytes * out.size // 8) * 8 for out in self.io_spec.outputs)
        return -(-(self.io_spec.input_bytes + self._answer_bytes + limits) // _PAGE) * _PAGE

    def faulty(self, **asked: Any) -> tuple[list[Array], str]:
        """Run the reference with a fault on one input set, for the task gate.

        Args:
            **asked: See `cudal1_worker.oracle.faults.FaultyRuns.faulty`.

        Returns:
            Its outputs as float64 or int64, flat, views of memory that the next set overwrites; and why there are none.
        """
        block = self._memory(self.set_bytes)
        begins = self.io_spec.input_bytes
        answer = self.ask("faulty", answers_at=begins, answer_bytes=self._answer_bytes, **asked)
        return ([] if answer["failed"] else self._answers(block)), answer["failed"]

    def _answers(self, data: Array) -> list[Array]:
        """The whole answers of a set that lies in some memory: views of it."""
        answers: list[Array] = []
        offset = self.io_spec.input_bytes
        for out in self.io_spec.outputs:
            raw = data[offset : offset + 8 * out.size]
            answers.append(self._device.view(raw, "float64" if out.floating else "int64"))
            offset += 8 * out.size
        return answers

    def rest(self) -> None:
        """Let the oracle give back memory that it only keeps."""
        self.ask("rest")

    def held_bytes(self) -> int:
        """Memory of a GPU that the oracle's process holds, as it says."""
        return int(self.ask("held")["bytes"])

    def _memory(self, size_bytes: int) -> Array:
        """Memory of the judge's that the oracle writes, at least as large as asked for."""
        if self._block is None or self._block.size_bytes < size_bytes:
            if self._block is not None:
                self._block.close()
                self._block = None
            block = self._device.block(-(-size_bytes // _PAGE) * _PAGE)
            try:
                self.ask("block", [block.fd], bytes=block.size_bytes)
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
