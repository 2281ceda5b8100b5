"""One arm of a trial, driven by the judge: build, construct, load weights, untimed calls, and parts of timed calls.

Reference and candidate go through exactly the same code.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire

from cudal1_env.judge.device.base import ArmMemory, Contract, Device, Output, address_of
from cudal1_env.judge.device.memory import sealed_file
from cudal1_env.judge.device.reading import Plan, Reader
from cudal1_env.judge.device.tensors import Array
from cudal1_env.judge.measure.fault import Fault, check_answer, fault_of_death
from cudal1_env.judge.oracle.client import Weights
from cudal1_env.judge.oracle.numerics import Comparison, compare
from cudal1_env.judge.oracle.replies import IoSpec
from cudal1_env.judge.oracle.samples import InputSet, Samples, are_correct, whole_samples
from cudal1_env.judge.oracle.state import Entry, Fingerprints, parse_fingerprints, parse_state
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.judge.workers.worker import Dead, Late, Worker
from cudal1_env.records import Status

_SPINS = 0x3FFF
"""Polls of the flag between two checks of the deadline (about a millisecond)."""
_TIMEOUT_FACTOR = 1000.0
"""Limit of a timed call over the reference's latency, which is the paper's rule; see `JudgeSettings.call_timeout_s`."""
_SHORTEST_S = 1e-7
"""No call is shorter; a program that reports less has broken its clock."""
_STALL_S = 1.0
"""Seconds added to the limit of a short call, because a busy host may delay it."""

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


class Arm:
    """A worker that holds one program.

    Methods raise `Fault` if the program fails.
    """

    def __init__(
        self,
        worker: Worker,
        device: Device,
        core: int | None,
        io_spec: IoSpec,
        settings: JudgeSettings,
        wanted: str,
    ) -> None:
        self.worker = worker
        self._control, self._reply = worker.pages
        self.device = device
        self._core = core
        self.io_spec = io_spec
        self.settings = settings
        self.wanted = wanted
        self.reader = Reader(io_spec.outputs, device.code)
        self.random = np.random.default_rng()  # seeded by the system; need not be repeatable
        self._memory: ArmMemory | None = None
        self._turn = 0
        self._deadline_s = settings.call_timeout_s
        self._withheld = False
        self._untimed_s = settings.warmup_timeout_s
        """Seconds left for the constructor and all untimed calls together."""
        self.prepared_s = 0.0
        """Seconds that import, constructor and untimed calls took."""

    # --- slow phases -------------------------------------------------------------------------------------------

    def build(self, source: str) -> None:
        """Import the program."""
        limit, began = self.settings.build_timeout_s, time.monotonic()
        with sealed_file(source.encode()) as fd:
            self._ask({"op": "build", "wanted": self.wanted}, [fd], limit, _BUILD_ERRORS, "importing the program")
        self.prepared_s += time.monotonic() - began

    def precompile(self, seed: int, *, slowly: bool) -> None:
        """Construct the model and call it once on made-up inputs outside the judge's memory; close the arm then.

        Args:
            seed: Seed of model and inputs.
            slowly: Whether it may take as long as an import, instead of as long as other untimed calls.
        """
        message = {
            "op": "ahead",
            "seed": seed,
            "arguments": self.io_spec.arguments,
            "entries": self.io_spec.layout,
            "bytes": self.io_spec.input_bytes,
            "device": self.device.name,
            "tf32": self.device.tf32,
        }
        limit_s = self.settings.warmup_timeout_s
        if slowly:
            limit_s = max(limit_s, self.settings.build_timeout_s)
        self._ask(message, [], limit_s, _CALL_ERRORS, "a call on made-up inputs")

    def _begin(self) -> None:
        """Create the memory for the arm's calls."""
        io_spec = self.io_spec
        output_bytes = sum(out.size * out.item_bytes for out in io_spec.outputs)
        self._memory = self.device.memory(self.worker.pid, io_spec.input_bytes, output_bytes, io_spec.work_bytes)
        message, fds = self._memory.begin()
        strides = [out.strides or () for out in io_spec.outputs]
        message |= {"op": "begin", "device": self.device.name, "entries": io_spec.layout, "strides": strides}
        self._memory.began(self._ask_untimed(message, fds, "mapping the memory of its calls"))

    def construct(self, seed: int) -> tuple[Entry, ...]:
        """Construct the model.

        Returns:
            Its state, as the worker reports it.
        """
        if self._memory is None:
            self._begin()
        message = {"op": "construct", "seed": seed, "arguments": self.io_spec.arguments}
        return parse_state(self._ask_untimed(message, [], f"{self.wanted}(...)").get("state"))

    def fingerprints(self, names: Sequence[str]) -> Fingerprints:
        """Return fingerprints of the named tensors of the model's state, as the worker reports them."""
        answer = self._ask_untimed({"op": "fingerprints", "names": list(names)}, [], "looking at the state")
        return parse_fingerprints(answer.get("fingerprints"))

    def withhold(self) -> None:
        """Withhold the program's text from later messages: it now knows secrets that later programs also receive."""
        self.worker.mute()
        self._withheld = True

    @property
    def memory(self) -> ArmMemory:
        """The arm's memory; available once its model is constructed."""
        assert self._memory is not None, "construct first"
        return self._memory

    def load(self, weights: Weights) -> None:
        """Load the judge's weights."""
        message = {"op": "load", "names": weights.names, "entries": weights.entries, "bytes": int(weights.data.size)}
        with sealed_file(weights.data.data) as fd:
            self._ask_untimed(message, [fd], "loading weights")

    def call_uncompared(self, one: InputSet, slot: int) -> float:
        """Make one untimed call of the reference; return the seconds that it reports. Nothing is compared.

        The judge's own time counts if the report cannot be true: limits and the size of a trial follow from it.
        """
        began = time.monotonic()
        seconds = self._untimed_call(one.inputs, slot, writable=False).get("seconds")
        longest_s = time.monotonic() - began
        with self.contract():
            self.memory.overwrite(self.reader.outputs(self._page()))
        return seconds if isinstance(seconds, float) and _SHORTEST_S < seconds < longest_s else longest_s

    def warm(self, one: InputSet, slot: int) -> tuple[Comparison, ...]:
        """Make one untimed call, compare as a timed call would, and leave the arm frozen."""
        return self._compared_call(one, slot)[1]

    def answers(self, inputs: Array) -> list[Array]:
        """Make one untimed call and return the whole outputs, flattened; raise `Fault` if the program wrote to inputs.

        On a CPU, this call maps the inputs private and writable, so that the judge can distinguish a write to them from
        a crash. All other calls map them read-only.
        """
        self._intact(0, inputs, self._untimed_call(inputs, 0, writable=True))
        with self.contract():
            return self.memory.whole(self.reader.outputs(self._page()))

    def verify(self, one: InputSet, slot: int) -> tuple[Comparison, ...]:
        """Make one untimed call under the contract of a timed one, and compare the whole outputs."""
        answer, comparisons = self._compared_call(one, slot)
        self._intact(slot, one.inputs, answer)
        return comparisons

    def _compared_call(self, one: InputSet, slot: int) -> tuple[wire.Message, tuple[Comparison, ...]]:
        """Make one untimed call; return the worker's answer and the comparisons. Correct outputs are overwritten."""
        answer = self._untimed_call(one.inputs, slot, writable=False)
        with self.contract():
            outputs = self.reader.outputs(self._page())
            if one.whole:
                comparisons = self.compare_whole(one, outputs)
            else:
                samples = whole_samples(one)
                plan = Plan(outputs, samples.positions)
                comparisons = samples.compare(plan.split(self.memory.read(plan, outputs)), self.io_spec.outputs)
            if are_correct(comparisons):
                self.memory.overwrite(outputs)
        return answer, comparisons

    def _intact(self, slot: int, inputs: Array, answer: wire.Message) -> None:
        """Raise `Fault` if an untimed call changed its inputs."""
        if not self.memory.intact(slot, inputs, address_of(answer.get("inputs"))):
            raise Fault(Status.WRONG_CONTRACT, "the program wrote to one of its inputs; inputs must stay unchanged")

    def _untimed_call(self, inputs: Array, slot: int, *, writable: bool) -> dict[str, Any]:
        self.memory.put(slot, inputs)
        message = {"op": "call", "slot": slot, "writable": writable, "clock": self.wanted == "Model"}
        answer = self._ask_untimed(message, [], "an untimed call")
        self.freeze()
        return answer

    def open(self) -> None:
        """Enter the timed loop, pinned to one core and unable to create processes; the arm is left frozen."""
        self.withhold()
        self.thaw()
        with self._faults("sealing"):
            self.worker.tell({"op": "timed"}, timeout_s=self.settings.warmup_timeout_s)
            self.worker.seal()
            if self._core is not None:
                self.worker.pin(self._core)

    def limit(self, reference_s: float) -> None:
        """Set the time limit of timed calls from the reference's latency."""
        longest_s = max(self.settings.call_timeout_s, 4 * reference_s)
        self._deadline_s = min(_TIMEOUT_FACTOR * reference_s + _STALL_S, longest_s)

    # --- parts of a timed call, see `chain` -------------------------------------------------------------------------

    @property
    def next_slot(self) -> int:
        """The slot in which the next call finds its inputs."""
        return (self._turn + 1) % wire.SLOTS

    def operation(self, operation: int) -> None:
        """Set the kind of the next calls: `wire.CALL` or `wire.EMPTY`."""
        self._control.words[wire.OPERATION] = operation

    def go(self, key: Sequence[int]) -> int:
        """Release the next call: write the key of its inputs (`ArmMemory.stage`), then its number as the ready word."""
        for place, word in enumerate(key, wire.KEY):
            self._control.words[place] = word
        self._turn += 1
        self._control.words[wire.GO] = self._turn
        return self._turn

    def wait_for(self, turn: int) -> bytes:
        """Wait for a call's done word; return a copy of the worker's description of the outputs."""
        words, spins = self._reply.words, 0
        limit_ns = time.perf_counter_ns() + int(self._deadline_s * 1e9)
        while words[wire.FLAG] != turn:
            spins += 1
            if not spins & _SPINS:
                self._check_waiting(limit_ns)
        if words[wire.OUTCOME] != wire.RETURNED:
            self._raise_outcome(words[wire.OUTCOME])
        return self._page()

    def _check_waiting(self, limit_ns: int) -> None:
        with self._faults(f"a timed call (limit {self._deadline_s:.3g} s)"):
            self.worker.drain()
            if time.perf_counter_ns() > limit_ns:
                raise Late("no answer in time")
            if not self.worker.alive:
                raise Dead(self.worker.end())

    def read(self, plan: Plan, samples: Samples, outputs: Sequence[Output]) -> npt.NDArray[np.uint8]:
        """Read elements of a call's outputs; call it within `contract`.

        Args:
            plan: Made for outputs of the form last known.
            samples: The elements; if the outputs have another form, a new plan is made from them.
            outputs: Checked outputs.
        """
        return self.memory.read(plan if plan.fits(outputs) else Plan(outputs, samples.positions), outputs)

    def read_located(self, plan: Plan, page: bytes) -> npt.NDArray[np.uint8]:
        """Read elements of a frozen worker's outputs before its description is checked; call it within `contract`.

        The form is the one last known. Only addresses are taken from the page.
        """
        try:
            return self.memory.read(plan, self.reader.located(page))
        except Contract:
            self.reader.outputs(page)  # has a better reason if the outputs have another form
            raise

    def compare_whole(self, one: InputSet, outputs: Sequence[Output]) -> tuple[Comparison, ...]:
        """Compare whole outputs; call it within `contract`."""
        # Read once: while the oracle widens answers, work that is still in flight could write better outputs.
        got = self.memory.whole(outputs)
        return one.decide(
            lambda answers: [
                compare(values, answer, output.expected, whole=True)
                for values, answer, output in zip(got, answers, outputs, strict=True)
            ]
        )

    def _raise_outcome(self, outcome: int) -> None:
        if outcome == wire.RAISED:
            with self._faults("reporting its error"):
                answer = self.worker.answer(timeout_s=5.0)
            check_answer(answer, _CALL_ERRORS, "a timed call", withheld=True)
        raise Fault(
            Status.WRONG_CONTRACT, "the outputs must be dense tensors on the task's device, or nested sequences of them"
        )

    def _page(self) -> bytes:
        return self._reply.bytes[: self.reader.page_bytes].tobytes()

    @contextlib.contextmanager
    def contract(self) -> Generator[None]:
        """Turn `Contract` inside the block into the program's fault."""
        try:
            yield
        except Contract as error:
            raise Fault(Status.WRONG_CONTRACT, error.text(withheld=self._withheld)) from None

    # --- stopping ----------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop the arm and all its children."""
        with self._faults("being stopped"):
            self.worker.freeze()

    def thaw(self) -> None:
        """Let the arm run again."""
        with self._faults("waiting"):
            self.worker.thaw()

    @contextlib.contextmanager
    def _faults(self, what: str) -> Generator[None]:
        """Turn the worker's death or timeout inside the block into its program's fault."""
        try:
            yield
        except Late as late:
            raise Fault(Status.TIMEOUT, f"{what} did not end in time: {late}") from None
        except wire.BadMessage as error:
            text = f"the worker sent something that is no message during {what}: {error}"
            raise Fault(Status.TAMPERING, text) from None
        except Dead as error:
            raise fault_of_death(error, what, withheld=self._withheld) from None

    # --- messages ----------------------------------------------------------------------------------------------

    def _ask_untimed(self, message: wire.Message, fds: list[int], what: str) -> dict[str, Any]:
        """Request one of the steps before the timed calls; all of them share one time budget."""
        limit_s = self.settings.warmup_timeout_s
        if self._untimed_s <= 0.0:
            raise Fault(Status.TIMEOUT, f"construction and untimed calls took over {limit_s:g} s together")
        self.thaw()
        began = time.monotonic()
        try:
            return self._ask(message, fds, self._untimed_s, _CALL_ERRORS, what)
        finally:
            taken_s = time.monotonic() - began
            self._untimed_s -= taken_s
            self.prepared_s += taken_s

    def _ask(
        self, message: wire.Message, fds: list[int], timeout_s: float, errors: dict[str, Status], what: str
    ) -> dict[str, Any]:
        with self._faults(what):
            answer = self.worker.ask(message, fds, timeout_s=timeout_s)
        check_answer(answer, errors, what, withheld=self._withheld)
        return answer

    def close(self) -> None:
        """Kill the worker and free its memory."""
        self.worker.close()
        if self._memory is not None:
            self._memory.close()
