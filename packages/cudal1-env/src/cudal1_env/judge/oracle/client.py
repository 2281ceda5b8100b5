"""The judge's client of the oracle process: a task's I/O specification, and input sets with their answers."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from cudal1_data import Task
from cudal1_worker import protocol as wire
from cudal1_worker.sandbox import Spec
from pydantic import BaseModel, ValidationError

from cudal1_env.errors import EnvError, TaskError, TooLargeError, WorkerLostError
from cudal1_env.judge.device.base import Block, Device
from cudal1_env.judge.device.memory import sealed_file
from cudal1_env.judge.device.tensors import Array
from cudal1_env.judge.oracle import replies
from cudal1_env.judge.oracle.numerics import Answer, fault
from cudal1_env.judge.workers.worker import Dead, Late, Worker
from cudal1_env.judge.workers.zygote import Zygote

Reply = TypeVar("Reply", bound=BaseModel)


@dataclass(frozen=True)
class Weights:
    """State values that the judge loads into every arm."""

    names: list[str]
    entries: list[dict[str, Any]]
    data: npt.NDArray[np.uint8]

    def renamed(self, pairs: dict[str, str]) -> Weights:
        """Return the weights that a candidate has, under the candidate's names."""
        there = [(pairs[name], entry) for name, entry in zip(self.names, self.entries, strict=True) if name in pairs]
        return replace(self, names=[name for name, _ in there], entries=[entry for _, entry in there])


@dataclass(frozen=True)
class Request:
    """A request for an input set."""

    index: int
    """Its number in the pool; -1 for a set that no candidate gets."""
    seed: int
    """Single-use."""
    distribution: str
    """One of `cudal1_worker.oracle.distributions.NAMES`."""
    positions: list[npt.NDArray[np.int64]]
    """Elements of each output whose limits are needed, shape (n,)."""
    whole: bool
    """Whether the limits of all elements are needed."""
    nearby: bool = False
    """Whether tolerances also count the reference's errors on moved inputs; this takes four times as long."""


_STEPS = {"build": "its import", "describe": "its constructor or first call", "make": "a call on new inputs"}
"""What the reference does in the requests during which it usually fails."""


class RaisedError(TaskError):
    """The reference raised an exception; the oracle still accepts requests."""


class OracleClient:
    """Client of one task's oracle process.

    The reference's text may be a stranger's, so its process is not trusted: each answer is parsed (`replies`).

    Methods raise `TaskError` if the reference fails, times out, disturbs its channel or ends its process. They raise
    `TooLargeError` if it lacks memory or was killed, and `WorkerLostError` if another thread of the judge killed it.
    Once the process has ended, they raise the same error again.

    Raises:
        TaskError: The reference cannot be imported or called, or is random.
    """

    def __init__(self, zygote: Zygote, spec: Spec, device: Device, task: Task, *, seed: int, timeout_s: float) -> None:
        self.task = task
        self._timeout_s = timeout_s
        self._device = device
        self.worker: Worker = zygote.fork("oracle", spec)
        self._block: Block | None = None
        self._gone: Callable[[], EnvError] | None = None
        """Makes the error of a process that answers no more."""
        self._most_bytes = device.total_bytes()
        if device.name == "cpu" and spec.memory_bytes is not None:
            self._most_bytes = min(self._most_bytes, spec.memory_bytes)
        try:
            with sealed_file(task.source.encode("utf-8", "replace")) as fd:
                self.ask("build", replies.Done, [fd], device=device.name, tf32=device.tf32)
            self.io_spec = self.ask("describe", replies.IoSpec, seed=seed)
            for out in self.io_spec.outputs:
                if out.dtype not in wire.DTYPES or len(out.shape) > wire.MAX_DIMENSIONS:
                    raise TaskError(
                        f"{task.id}: expected outputs of at most {wire.MAX_DIMENSIONS} dimensions, of type "
                        f"{', '.join(wire.DTYPES)}; got {out.dtype} of shape {list(out.shape)}"
                    )
                if out.dtype.startswith("complex"):
                    raise TaskError(
                        f"{task.id}: expected real outputs, got {out.dtype}; return real and imaginary part"
                    )
            self._check_room(max(self.set_bytes, self.io_spec.work_bytes))
            self.ask("rest", replies.Done)  # other processes need its cached memory
        except BaseException:
            self.close()
            raise

    def ask(self, op: str, kind: type[Reply], fds: Sequence[int] = (), **message: Any) -> Reply:
        """Send a request and return the answer; handlers in `cudal1_worker.oracle.oracle` define each operation."""
        if self._gone is not None:
            raise self._gone()
        try:
            answer = self.worker.ask({"op": op, **message}, fds, timeout_s=self._timeout_s)
            if "error" not in answer:
                return kind.model_validate(answer)
            failure = replies.Failure.model_validate(answer)
        except (Dead, Late, wire.BadMessage, ValidationError) as error:
            raise self._lost(op, error) from None
        about = "" if failure.error == "task" else f"the reference failed in {_STEPS.get(op, op)}: "
        text = f"{self.task.id}: {about}{failure.text}"
        raise TooLargeError(text) if failure.error == "memory" else RaisedError(text)

    def disturbed(self, op: str, why: str) -> EnvError:
        """Return the error for an answer that no honest oracle gives to this request, and end the process."""
        return self._lost(op, wire.BadMessage(why))

    def _lost(self, op: str, error: Dead | Late | wire.BadMessage | ValidationError) -> EnvError:
        """Return the error for an oracle that answers no more, and end the process."""
        self.worker.kill()  # a late answer would be taken for that to the next request
        about, step = f"{self.task.id}: the reference", _STEPS.get(op, op)
        if self.worker.interrupted:
            self._gone = partial(WorkerLostError, f"{self.task.id}: the judge ended the oracle during {op}")
        elif isinstance(error, Late):
            self._gone = partial(TaskError, f"{about} took over {self._timeout_s:g} s in {step}")
        elif not isinstance(error, Dead):
            why = replies.why_malformed(error) if isinstance(error, ValidationError) else error
            self._gone = partial(TaskError, f"{about} disturbs its channel in {op}: {why}")
        elif error.how.get("signal") == signal.SIGKILL:
            # The system's lack of memory and the task's own limits cannot be told apart.
            why = "most likely for its memory or by a limit that it set"
            self._gone = partial(TooLargeError, f"{about} was killed in {step}, {why}")
        else:
            self._gone = partial(TaskError, f"{about}'s process died {error} in {step}")
        return self._gone()

    def _check_room(self, size_bytes: int) -> None:
        """Raise `TooLargeError` for sizes that the oracle's process cannot have in its memory."""
        if size_bytes > self._most_bytes:
            raise TooLargeError(
                f"{self.task.id}: the reference's inputs, answers or state take {size_bytes / 1e9:.3g} GB of "
                f"{self._most_bytes / 1e9:.3g} GB"
            )

    def weights(self, seed: int, values_seed: int) -> Weights:
        """Make non-default weights and load them into the oracle's models."""
        answer = self.ask("state", replies.Stored, seed=seed, values_seed=values_seed)
        self._check_room(answer.size_bytes)
        if not {*answer.names} <= {one.name for one in self.io_spec.state}:
            raise self.disturbed("state", "expected names of the state")
        block = self._memory(answer.size_bytes)
        self.ask("write", replies.Done)
        return Weights(answer.names, answer.layout, self._device.to_host(block[: answer.size_bytes]))

    def make(self, sets: Sequence[Request]) -> list[tuple[Array, list[Answer], str]]:
        """Make input sets with answers and tolerances, at most `max_at_once` at a time.

        Returns:
            For each set its inputs (bytes, shape (input_bytes,), on the device), the answer of each output, and why no
            program can be judged by them; empty if programs can.
        """
        outputs, copy, input_bytes, stride = (
            self.io_spec.outputs,
            self._device.copy,
            self.io_spec.input_bytes,
            self.set_bytes,
        )
        block = self._memory(stride * len(sets))
        wanted = [asdict(one) | {"positions": [positions.tolist() for positions in one.positions]} for one in sets]
        made = self.ask(
            "make", replies.Made, sets=wanted, stride=stride, answers_at=input_bytes, answer_bytes=self.answer_bytes
        )
        if list(map(len, made.reports)) != [len(outputs)] * len(sets):
            raise self.disturbed("make", "expected a report on each output of each set")
        parts = [block[stride * number : stride * (number + 1)] for number in range(len(sets))]
        views = [
            list(zip(self._answers(part), self._limits(one, part), strict=True))
            for one, part in zip(sets, parts, strict=True)
        ]
        sampled = iter(
            self._device.take([pair for one, pairs in zip(sets, views, strict=True) for pair in _elements(one, pairs)])
        )
        result: list[tuple[Array, list[Answer], str]] = []
        for one, part, pairs, reports in zip(sets, parts, views, made.reports, strict=True):
            answers: list[Answer] = []
            reasons: list[str] = []
            for k, (values, limits) in enumerate(pairs):
                whole = (copy(values), copy(limits)) if one.whole else (None, None)
                scale, error = reports[k].scale, reports[k].reference_error
                error = float(f"{error / scale:.1e}") if scale > 0 else 0.0
                answers.append(
                    Answer(one.positions[k], next(sampled), next(sampled), *whole, scale, error, reports[k].bulk)
                )
                why = "other elements are finite" if reports[k].masks_differ else fault(answers[k], outputs[k])
                reasons += [f"of output {k} {why}"] if why else []
            result.append((copy(part[:input_bytes]), answers, "; ".join(reasons)))
        return result

    def _limits(self, one: Request, data: Array) -> list[Array]:
        """Return the tolerances of a set as views of its memory; see `cudal1_worker.oracle.oracle.Oracle.make`."""
        limits: list[Array] = []
        offset = self.io_spec.input_bytes + self.answer_bytes
        for out, positions in zip(self.io_spec.outputs, one.positions, strict=True):
            size = out.limit_bytes * (out.size if one.whole else positions.size)
            kind = "int64" if not out.floating else "float64" if out.limit_bytes == 8 else "float32"
            limits.append(self._device.view(data[offset : offset + size], kind))
            offset += -(-size // 8) * 8
        return limits

    @property
    def answer_bytes(self) -> int:
        """Size of a set's whole answers."""
        return 8 * sum(out.size for out in self.io_spec.outputs)

    def draw(self, seed: int) -> Array:
        """Make one set of inputs of the task's own distribution, without answers.

        Returns:
            Bytes, shape (input_bytes,), on the device.
        """
        block = self._memory(self.io_spec.input_bytes)
        self.ask("draw", replies.Done, seed=seed)
        return self._device.copy(block[: self.io_spec.input_bytes])

    @property
    def max_at_once(self) -> int:
        """Maximum sets per request; several at once, because each GPU switch between judge and oracle costs time."""
        return max(1, self._device.at_once_bytes // self.set_bytes)

    @property
    def set_bytes(self) -> int:
        """Memory of a set with whole answers and limits."""
        limits = sum(-(-out.limit_bytes * out.size // 8) * 8 for out in self.io_spec.outputs)
        return -(-(self.io_spec.input_bytes + self.answer_bytes + limits) // wire.ALIGNMENT) * wire.ALIGNMENT

    def faulty(self, **asked: Any) -> tuple[list[Array], str]:
        """Run the reference with a fault on one input set, for the task gate.

        Args:
            **asked: See `cudal1_worker.oracle.faults.FaultyRuns.faulty`.

        Returns:
            Its outputs, float64 or int64, flat, views of memory that the next set overwrites; and the reason if there
            are none, else an empty text.
        """
        block = self._memory(self.set_bytes)
        begins = self.io_spec.input_bytes
        answer = self.ask("faulty", replies.Faulty, answers_at=begins, answer_bytes=self.answer_bytes, **asked)
        return ([] if answer.failed else self._answers(block)), answer.failed

    def _answers(self, data: Array) -> list[Array]:
        """Return the whole answers of a set as views of its memory."""
        answers: list[Array] = []
        offset = self.io_spec.input_bytes
        for out in self.io_spec.outputs:
            raw = data[offset : offset + 8 * out.size]
            answers.append(self._device.view(raw, "float64" if out.floating else "int64"))
            offset += 8 * out.size
        return answers

    def _memory(self, size_bytes: int) -> Array:
        """Return memory of the judge that the oracle can write, of at least `size_bytes`."""
        if self._block is None or self._block.size_bytes < size_bytes:
            if self._block is not None:
                self._block.close()
                self._block = None
            try:
                block = self._device.block(-(-size_bytes // wire.ALIGNMENT) * wire.ALIGNMENT)
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                text = f"{self.task.id}: there is no memory for the reference's inputs, answers or state"
                raise TooLargeError(f"{text} ({size_bytes / 1e9:.3g} GB)") from error
            try:
                self.ask("block", replies.Done, [block.fd], bytes=block.size_bytes)
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


def _elements(one: Request, views: Sequence[tuple[Array, Array]]) -> Iterator[tuple[Array, npt.NDArray[np.int64]]]:
    """Yield the arrays of a set to read elements from, each with the elements' positions."""
    for (values, limits), positions in zip(views, one.positions, strict=True):
        yield values, positions
        yield limits, positions if one.whole else np.arange(positions.size)
