"""One arm of a measurement, led by the judge: build, construct, load weights, untimed and timed calls.

Both arms, reference and candidate, go through exactly this code.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cudal1_worker import protocol as wire

from cudal1_env.judge.device.base import ArmMemory, Contract, Device, Needs, Output, parse_outputs
from cudal1_env.judge.device.memory import sealed_file
from cudal1_env.judge.device.tensors import Array
from cudal1_env.judge.oracle.client import Anatomy, Weights
from cudal1_env.judge.oracle.numerics import Comparison, compare
from cudal1_env.judge.oracle.pool import InputSet
from cudal1_env.judge.oracle.samples import chosen_samples, chosen_whole, whole_samples
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.judge.workers.core_keeper import CoreKeeper
from cudal1_env.judge.workers.worker import Dead, Late, Worker
from cudal1_env.records import Status

_SPINS = 0x3FFF
"""Polls of the flag between two looks at the clock (about a millisecond)."""
_STALL_S, _AWAKE_TIMEOUT_S = 1.0, 2.0  # the first: a host may hold up a short call

_BUILD_ERRORS = {
    "syntax": Status.SYNTAX_ERROR,
    "no_code": Status.NO_CODE,
    "memory": Status.OUT_OF_MEMORY,
    "raised": Status.BUILD_ERROR,
}
_CALL_ERRORS = {
    "memory": Status.OUT_OF_MEMORY,
    "contract": Status.WRONG_CONTRACT,
    "raised": Status.RUNTIME_ERROR,
}
_SIGSYS = 31
_SIGKILL = 9


class Fault(Exception):
    """A program failed, with the status that this gets. Data, not an error of the judge."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Call:
    """Timed calls that were made in one go: one, or several where a single one is too short."""

    elapsed_ns: int
    """From the release of the inputs until the sample of the last outputs is read."""
    comparisons: tuple[tuple[Comparison, ...], ...]
    """For each call and output: the sample, or the whole output where the set says so."""
    full_checks: int
    """Calls whose whole outputs were compared."""
    taken_s: float | None
    """Seconds that something else took of the device when the inputs had arrived, if that was asked for."""
    awake_ns: int = 0
    """How long the arm ran before, to drop its last outputs."""


class Arm:
    """A worker that holds one program.

    Args:
        worker: Freshly forked.
        device: Where it works.
        keeper: Hands the arms' core over.
        anatomy: What the task looks like.
        settings: Time limits.
        wanted: `Model` or `ModelNew`.
    """

    def __init__(
        self,
        worker: Worker,
        device: Device,
        keeper: CoreKeeper,
        anatomy: Anatomy,
        settings: JudgeSettings,
        wanted: str,
    ) -> None:
        assert worker.control is not None, "an oracle is no arm"
        assert worker.reply is not None, "an oracle is no arm"
        self.worker = worker
        self._control, self._reply = worker.control, worker.reply
        self.device = device
        self.keeper = keeper
        self.anatomy = anatomy
        self.settings = settings
        self.wanted = wanted
        self._memory: ArmMemory | None = None
        self._burst = 1
        self._random = np.random.default_rng()  # seeded by the system: nobody needs to repeat it
        self._turn = 0
        self._deadline_s = settings.call_timeout_s

    # --- slow phases -------------------------------------------------------------------------------------------

    def build(self, source: str) -> None:
        """Import the program.

        Raises:
            Fault: It cannot be imported.
        """
        limit = self.settings.build_timeout_s
        with sealed_file(source.encode()) as fd:
            self._ask({"op": "build", "wanted": self.wanted}, [fd], limit, _BUILD_ERRORS, "importing the program")

    def rehearse(self, seed: int) -> None:
        """Make the model and call it once on made-up inputs, outside of the judge's memory; this arm is used no more.

        Args:
            seed: Of the constructor and the inputs.

        Raises:
            Fault: It fails.
        """
        message = {
            "op": "ahead",
            "wanted": self.wanted,
            "seed": seed,
            "arguments": self.anatomy.arguments,
            "entries": self.anatomy.entries,
            "bytes": self.anatomy.input_bytes,
            "device": self.device.name,
            "tf32": self.device.tf32,
        }
        limit_s = max(self.settings.build_timeout_s, self.settings.warmup_timeout_s)
        self._ask(message, [], limit_s, _CALL_ERRORS, "a rehearsal")

    def construct(self, seed: int) -> bool:
        """Make the model.

        Args:
            seed: Seed of the constructor; the same for both arms.

        Returns:
            Whether names and shapes of its state are the reference's.

        Raises:
            Fault: The constructor fails.
        """
        anatomy, settings = self.anatomy, self.settings
        output_bytes = sum(out.size * out.item_bytes for out in anatomy.outputs)
        calls = max(settings.burst_training, settings.burst_report)
        burst_bytes = min(settings.burst_bytes, self.device.most_burst_bytes)
        needs = Needs(anatomy.input_bytes, output_bytes, anatomy.work_bytes, calls, burst_bytes)
        self._memory = self.device.memory(self.worker.pid, needs)
        if (begin := self._memory.begin()) is not None:
            self._memory.began(self._ask(*begin, self.settings.warmup_timeout_s, _CALL_ERRORS, "starting on the GPU"))
        answer = self._ask(
            {"op": "construct", "wanted": self.wanted, "seed": seed, "arguments": self.anatomy.arguments},
            [],
            self.settings.warmup_timeout_s,
            _CALL_ERRORS,
            f"{self.wanted}(...)",
        )
        self.make_slots(1)
        return answer.get("state") == self.anatomy.state

    def make_slots(self, burst: int) -> None:
        """Make room for the inputs of as many calls in one go.

        Raises:
            Fault: The worker cannot map it.
        """
        message, fds = self.memory.slots(burst)
        message = {"op": "inputs", "entries": self.anatomy.entries, **message}
        self._ask(message, fds, self.settings.warmup_timeout_s, _CALL_ERRORS, "learning the inputs' layout")
        self._burst = burst

    @property
    def memory(self) -> ArmMemory:
        """Its memory, once it is constructed."""
        assert self._memory is not None, "construct first"
        return self._memory

    def load(self, weights: Weights) -> None:
        """Load the judge's weights.

        Raises:
            Fault: The state refuses them.
        """
        message = {"op": "load", "names": weights.names, "entries": weights.entries, "bytes": int(weights.data.size)}
        with sealed_file(weights.data.data) as fd:
            self._ask(message, [fd], self.settings.warmup_timeout_s, _CALL_ERRORS, "loading weights")

    def warm(self, one: InputSet, *, writable: bool) -> tuple[float, tuple[Comparison, ...]]:
        """Call once, untimed, and compare as a timed call would.

        Args:
            one: An input set.
            writable: Map the inputs privately and writable, to tell a program that writes to its inputs from one that
                crashes; timed calls map them read-only.

        Returns:
            Seconds of the call as the worker says (to be believed of the reference only), and the comparisons.

        Raises:
            Fault: The call fails, breaks the contract, or writes to its inputs.
        """
        with self.memory.present(one.inputs, writable=writable) as (message, fds):
            message = {"op": "call", "clock": self.wanted == "Model", **message}
            answer = self._ask(message, fds, self.settings.warmup_timeout_s, _CALL_ERRORS, "the first calls")
            self.freeze()
            try:
                if writable and not self.memory.intact(one.inputs, self._inputs_at()):
                    raise Fault(
                        Status.WRONG_CONTRACT, "expected inputs to be left as they are, the program wrote to one"
                    )
                with self._contract():
                    outputs = self._outputs(self._page(1), 1)
                    if one.whole:
                        comparisons = self._whole(one, outputs)
                    else:
                        samples = whole_samples(one.answers)
                        got = self.memory.samples(outputs, samples.positions)
                        comparisons = tuple(samples.compare(got, self.anatomy.outputs))
            finally:
                self.thaw()
        seconds = answer.get("seconds")
        return seconds if isinstance(seconds, float) and seconds > 0 else 1e-3, comparisons

    def pace(self) -> float:
        """Return the seconds of a call among many, as the worker says (to be believed of the reference only).

        Raises:
            Fault: A call fails.
        """
        answer = self._ask({"op": "pace"}, [], self.settings.warmup_timeout_s, _CALL_ERRORS, "calls in a row")
        seconds = answer.get("seconds")
        return seconds if isinstance(seconds, float) and seconds > 0 else 1e-3

    def open(self, burst: int, warm: Array, *, cold: bool) -> None:
        """Enter the timed loop, held to one core, without the right to make processes. The arm is frozen afterwards.

        What the program says from here on is not kept: it sees inputs that the task's later candidates will see again,
        and its author reads the record.

        Args:
            burst: Most calls in one go.
            warm: Inputs for calls that are made to find out whether the program uses its outputs' memory again.
            cold: Empty the caches after a turn's inputs came, however few they are.

        Raises:
            Fault: The worker fails.
        """
        self.worker.mute()
        self.memory.cold = cold
        self.thaw()
        if burst != self._burst:
            self.make_slots(burst)
            self.memory.fill(0, [warm] * burst)
            self._ask({"op": "rehearse"}, [], self.settings.warmup_timeout_s, _CALL_ERRORS, "several calls in one go")
        with self._faults("sealing"):
            self.worker.tell({"op": "timed"}, timeout_s=self.settings.warmup_timeout_s)
            self.worker.seal()
            if self.keeper.core is not None:
                self.worker.pin(self.keeper.core)

    def limit(self, reference_s: float) -> None:
        """Set the time limit of timed calls from the reference's latency."""
        settings = self.settings
        self._deadline_s = min(
            settings.call_timeout_factor * reference_s + _STALL_S, max(settings.call_timeout_s, 4 * reference_s)
        )

    def at_most(self, calls: int) -> None:
        """Say how many calls will be made in one go at most: inputs of all calls come as those of the most do."""
        self.memory.most_calls = calls

    # --- timed calls -------------------------------------------------------------------------------------------

    def call(self, sets: Sequence[InputSet], *, empty: bool = False, watch: bool = False) -> Call:
        """Make timed calls in one go, at most as many as `make_slots` was told; the arm is frozen before and after.

        The judge writes the inputs into memory that the arm does not choose, and empties the caches, while the arm is
        frozen. The clock starts when it lets the arm run again, and stops when the judge, having frozen the arm, has
        read a secret sample of all outputs.

        Args:
            sets: Inputs never seen by this arm.
            watch: Find out, before the clock starts, whether something of the arm works on the device though it stands
                still; such a call is not for timing.
            empty: Everything but the calls themselves, on the last untimed call's outputs (to measure the overhead).

        Raises:
            Fault: A call fails or breaks the contract.
        """
        control, reply, count = self._control.words, self._reply.words, len(sets)
        self._turn += 1
        turn = self._turn
        first = turn % wire.SLOTS * self._burst if count <= self._burst else 0
        control[wire.SLOT], control[wire.COUNT] = first, count
        control[wire.OPERATION] = wire.EMPTY if empty else wire.CALL
        awake_ns = self._awake(turn)
        answers = [answer for one in sets for answer in one.answers]
        if (pieces := self.device.sample_pieces) is None:
            on_clock, afterwards = whole_samples(answers), None
        else:
            on_clock, afterwards = chosen_samples(answers, pieces, self._random)
        self.memory.expect(on_clock.positions, self.anatomy.outputs)
        # From here until it is let go nothing of the arm runs: it sees neither a copy in the making nor a warm cache.
        taken_s = self.memory.supply(turn, first, [one.inputs for one in sets], watch=watch)
        self.keeper.hold()
        with self._faults(f"a timed call (limit {self._deadline_s:.3g} s)"):
            began = time.perf_counter_ns()
            control[wire.GO] = turn
            try:
                self.worker.thaw()
            finally:  # also when the arm is dead: else the keeper would spin on
                self.keeper.release()
            self._wait(reply, wire.FLAG, turn, began + int(self._deadline_s * count * 1e9))
        if reply[wire.OUTCOME] != wire.RETURNED:
            self._raise_outcome(reply[wire.OUTCOME])
        if self.device.reads_frozen:
            self.freeze()
        with self._contract():
            page = self._page(count)
            read = self.memory.samples_as_before(page)
            got = [] if read else self.memory.samples(self._outputs(page, count), on_clock.positions)
            elapsed = time.perf_counter_ns() - began
            # What was read is the judge's by now: sorting and comparing it need not hurry.
            if read:
                got = read()
            if not self.device.reads_frozen:
                self.freeze()
            outputs = self._outputs(page, count)
            width = len(self.anatomy.outputs)
            sampled = on_clock.compare(got, self.anatomy.outputs)
            if afterwards is not None and all(one.right for one in sampled):
                more = self.memory.samples(outputs, afterwards.positions)
                sampled = afterwards.compare(more, self.anatomy.outputs)
            comparisons = [tuple(sampled[width * k : width * (k + 1)]) for k in range(count)]
            whole = [] if empty else chosen_whole(sets, self._random)  # of both arms: reading warms caches
            for place in whole:
                if all(sample.right for sample in comparisons[place]):
                    comparisons[place] = self._whole(sets[place], outputs[width * place : width * (place + 1)])
        self.worker.drain()
        return Call(elapsed, tuple(comparisons), len(whole), taken_s, awake_ns)

    @property
    def describing_ns(self) -> int:
        """How long the (trusted) worker waited for the device and described its outputs in the last empty call."""
        return self._reply.words[wire.DESCRIBING]

    def _awake(self, turn: int) -> int:
        """Let the arm run until it has dropped its last outputs and polls; return how many nanoseconds it ran."""
        began = time.perf_counter_ns()
        self._control.words[wire.WAKE] = turn
        self.thaw()
        with self._faults("handing over after a call"):
            self._wait(self._reply.words, wire.AWAKE, turn, began + int(_AWAKE_TIMEOUT_S * 1e9))
        self.freeze()
        return time.perf_counter_ns() - began

    def _inputs_at(self) -> int:
        """Where the worker says that it mapped its inputs; only its own contract depends on it."""
        return self._reply.words[wire.INPUTS]

    def _wait(self, words: memoryview, word: int, value: int, limit_ns: int) -> None:
        spins = 0
        while words[word] != value:
            spins += 1
            if not spins & _SPINS:
                self.worker.drain()
                if time.perf_counter_ns() > limit_ns:
                    raise Late("it did not")
                if not self.worker.alive:
                    raise Dead(self.worker.end())

    def _raise_outcome(self, outcome: int) -> None:
        if outcome == wire.RAISED:
            with self._faults("telling its error"):
                answer = self.worker.answer(timeout_s=5.0)
            known = {"error": answer.get("error"), "text": "an exception whose text is withheld"}
            self._check(known, _CALL_ERRORS, "a timed call")
        raise Fault(Status.WRONG_CONTRACT, "expected dense tensors on the task's device, or nested sequences of them")

    def _page(self, calls: int) -> bytes:
        """A copy of what the worker wrote about its outputs."""
        size = wire.DESCRIPTOR_OFFSET + calls * len(self.anatomy.outputs) * wire.DESCRIPTOR.size
        return self._reply.bytes[:size].tobytes()

    def _outputs(self, page: bytes, calls: int) -> list[Output]:
        """Where the outputs lie, as the worker says and the contract allows.

        Raises:
            Contract: They are not what the task's outputs are.
        """
        expected = self.anatomy.outputs
        outputs = parse_outputs(page, expected, calls, self.device.code)
        self._check_aliasing(outputs, len(expected))
        self.memory.learn(page, outputs[: len(expected)])
        return outputs

    def _whole(self, one: InputSet, outputs: Sequence[Output]) -> tuple[Comparison, ...]:
        return tuple(
            compare(self.memory.whole(output), answer, output.expected, whole=True)
            for answer, output in zip(one.answers, outputs, strict=True)
        )

    def _check_aliasing(self, outputs: Sequence[Output], width: int) -> None:
        start = self._inputs_at()
        end = start + self.anatomy.input_bytes
        for place, output in enumerate(outputs):
            low, high = output.address, output.address + output.span_bytes
            if low < end and start < high and not output.expected.aliases:
                raise Contract(f"expected output {place % width} in memory of its own, it lies in an input")

    @contextlib.contextmanager
    def _contract(self) -> Generator[None]:
        """Turn a broken contract into the program's fault."""
        try:
            yield
        except Contract as error:
            raise Fault(Status.WRONG_CONTRACT, str(error)) from None

    # --- stopping ----------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop the arm with everything that it made.

        Raises:
            Fault: It is dead or does not stop.
        """
        with self._faults("being stopped"):
            self.worker.freeze()

    def thaw(self) -> None:
        """Let the arm run again.

        Raises:
            Fault: It is dead.
        """
        with self._faults("waiting"):
            self.worker.thaw()

    @contextlib.contextmanager
    def _faults(self, what: str) -> Generator[None]:
        """Turn the worker's end or silence into the program's fault."""
        try:
            yield
        except Late as late:
            raise Fault(Status.TIMEOUT, f"expected {what} to end in time, {late}") from None
        except wire.BadMessage as error:
            text = f"what came over the worker's channel during {what} is no message: {error}"
            raise Fault(Status.TAMPERING, text) from None
        except Dead as error:
            raise self._fault_of_death(error, what) from None

    # --- messages ----------------------------------------------------------------------------------------------

    def _ask(
        self, message: wire.Message, fds: list[int], timeout_s: float, errors: dict[str, Status], what: str
    ) -> dict[str, Any]:
        with self._faults(what):
            answer = self.worker.ask(message, fds, timeout_s=timeout_s)
        self._check(answer, errors, what)
        return answer

    def _check(self, answer: wire.Message, errors: dict[str, Status], what: str) -> None:
        if "error" not in answer:
            return
        kind, text = answer["error"], answer.get("text", "")
        status = errors.get(kind, errors["raised"]) if isinstance(kind, str) else errors["raised"]
        text = text[:2000] if isinstance(text, str) else "(no text)"
        raise Fault(status, text if status in (Status.NO_CODE, Status.SYNTAX_ERROR) else f"{what} failed: {text}")

    def _fault_of_death(self, error: Dead, what: str) -> Fault:
        number = error.how.get("signal")
        if error.how.get("closed"):
            return Fault(Status.CRASH, f"the worker closed its channel to the judge during {what}")
        if number == _SIGSYS:
            return Fault(Status.TAMPERING, f"a system call that no honest program needs was made during {what}")
        if number == _SIGKILL:
            return Fault(Status.OUT_OF_MEMORY, f"the worker was killed during {what}, most likely for its memory")
        how = f"of signal {number}" if number is not None else f"with exit code {error.how.get('exit')}"
        return Fault(Status.CRASH, f"the worker died {how} during {what}")

    def close(self) -> None:
        """Kill the worker and give its memory back."""
        self.worker.close()
        if self._memory is not None:
            self._memory.close()
