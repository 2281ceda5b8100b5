"""One timed sample: calls of one arm, each released after the judge has read outputs of the previous call.

  judge   |-- untimed calls ------|= key in, GO =|        |= sample out =|= key in, GO =|        |= sample out =|
  worker                                         |= call =|                             |= call =|
  clock                           ^ it starts                                                      it stops ^

On a GPU, a sample is such a chain, of secret length. The inputs of all its calls lie in the worker's memory, each set
under its own mask. The judge writes a call's key after it has read elements of the previous call's outputs. The clock
runs from the first release to the last read, so it also counts work that the worker does while masks are removed or
elements are copied. A candidate can gain at most the harness overhead from such work.

On a CPU, a sample is one call. The judge writes the inputs and overwrites the last outputs while the worker is frozen,
which it confirms. The clock runs from the thaw until the judge has read the outputs of the frozen process. So there are
no untimed calls in a sample, and a program cannot work before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire

from cudal1_env.judge.device.base import Output
from cudal1_env.judge.device.reading import Plan
from cudal1_env.judge.oracle.numerics import Comparison
from cudal1_env.judge.oracle.samples import InputSet, Samples, are_correct, chosen_samples, whole_samples

if TYPE_CHECKING:
    from cudal1_env.judge.measure.arm import Arm

_ON_CLOCK_ELEMENTS = 8
"""Secret elements of each call that are read on the clock on a GPU, where each costs time."""


@dataclass(frozen=True)
class Sample:
    """Result of one timed sample."""

    call_ms: float
    """Mean latency of the chain's calls, overhead included."""
    comparisons: tuple[tuple[Comparison, ...], ...]
    """For each call and output: comparison of the secret elements, or of the whole output if it was read. Ends with the
    first incorrect call."""
    full_checks: int
    """Calls whose whole outputs were compared."""
    reading_ms: float
    """How long the judge read from the stopped worker (CPU); otherwise 0."""
    untimed_s: float
    """Duration of the calls before the clock; 0 if there are none."""


@dataclass
class _Link:
    """One call of a chain."""

    one: InputSet
    on_clock: Samples
    """Elements read on the clock."""
    plan: Plan
    """The same elements as bytes, for outputs of the form last known."""
    afterwards: Samples
    """Elements read after the clock if this is a chain's last call."""
    key: Sequence[int] = ()
    """Words that unmask the call's inputs; without them the worker cannot read the inputs."""
    page: bytes = b""
    """The worker's description of the outputs."""
    outputs: list[Output] = field(default_factory=list[Output])
    """Outputs as the worker described them."""
    data: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    """Bytes read from the outputs."""
    stopped_ns: int = 0
    """Clock time when the worker was confirmed frozen; 0 in a chain."""
    read_ns: int = 0
    """Clock time when its outputs had been read."""


def timed_sample(arm: Arm, sets: Sequence[InputSet], untimed: Sequence[InputSet], *, empty: bool = False) -> Sample:
    """Make timed calls with an arm, which is frozen before and after.

    Args:
        arm: An arm in the timed loop.
        sets: Inputs, one for each call; a single one on a CPU. Those of a counted sample of a candidate are new to it.
        untimed: Inputs of a chain's first calls, before the clock. These calls bring caches, clock rates and GPU
            contexts into the state that later calls find. The first takes 50 % longer than the fourth.
        empty: Do everything except the calls, with the outputs of the last call before the timed loop, to measure the
            overhead.

    Raises:
        Fault: A call fails or breaks the contract.
    """
    arm.operation(wire.EMPTY if empty else wire.CALL)
    links = [_link(arm, one) for one in sets]
    if arm.device.chained:
        before = [_link(arm, one) for one in untimed]
        everything = (*before, *links)
        calls = [(link.one.inputs, link.plan) for link in everything]
        for link, key in zip(everything, arm.memory.stage(calls), strict=True):
            link.key = key
        arm.device.settle()
        arm.thaw()
        untimed_s = _clocked(arm, before) * 1e-9
        elapsed_ns = _clocked(arm, links)
        arm.freeze()
    else:
        arm.memory.put(arm.next_slot, sets[0].inputs)
        arm.device.settle()
        untimed_s = 0.0
        elapsed_ns = _clocked(arm, links) + _checked(arm, links[0])
    comparisons, full_checks = ((), 0) if empty else _compared(arm, links)
    last = links[-1]
    with arm.contract():
        arm.memory.overwrite(last.outputs)
    arm.worker.drain()
    reading_ms = (last.read_ns - last.stopped_ns) * 1e-6 if last.stopped_ns else 0.0
    return Sample(elapsed_ns * 1e-6 / len(links), comparisons, full_checks, reading_ms, untimed_s)


def _clocked(arm: Arm, links: Sequence[_Link]) -> int:
    """Make calls; return the nanoseconds from the first release to the last read. Nothing else is on the clock."""
    chained, now = arm.device.chained, time.perf_counter_ns
    with arm.contract():
        began = ended = now()
        for link in links:
            turn = arm.go(link.key)  # the ready word, last
            if not chained:
                arm.thaw()
            link.page = arm.wait_for(turn)  # the done word
            if chained:
                link.outputs = arm.reader.outputs(link.page)
                link.data = arm.read(link.plan, link.on_clock, link.outputs)
            else:
                arm.freeze()
                link.stopped_ns = now()
                link.data = arm.read_located(link.plan, link.page)
            link.read_ns = ended = now()
    return ended - began


def _checked(arm: Arm, link: _Link) -> int:
    """Check the outputs that were read from a frozen worker; return the nanoseconds that reading them again took.

    They are read again if they have another form than the plan's.
    """
    with arm.contract():
        link.outputs = arm.reader.outputs(link.page)
        if link.plan.fits(link.outputs):
            return 0
        began = time.perf_counter_ns()
        link.data = arm.read(link.plan, link.on_clock, link.outputs)
        return time.perf_counter_ns() - began


def _link(arm: Arm, one: InputSet) -> _Link:
    """Choose which elements of a call's outputs to read, before the clock runs."""
    forms = arm.reader.known
    if not arm.device.chained:
        samples = whole_samples(one)
        return _Link(one, samples, Plan(forms, samples.positions), samples)
    on_clock, afterwards = chosen_samples(one, _ON_CLOCK_ELEMENTS, arm.random)
    return _Link(one, on_clock, Plan(forms, on_clock.positions), afterwards)


def _compared(arm: Arm, links: Sequence[_Link]) -> tuple[tuple[tuple[Comparison, ...], ...], int]:
    """Compare the elements read, then more of the last call; return comparisons and the number of whole comparisons.

    Comparisons end with the first incorrect call.
    """
    expected = arm.reader.expected
    found: list[tuple[Comparison, ...]] = []
    for link in links:
        found.append(link.on_clock.compare(link.plan.split(link.data), expected))
        if not are_correct(found[-1]):
            return tuple(found), 0
    last, full_checks = links[-1], 0
    with arm.contract():
        if arm.device.chained:
            plan = Plan(last.outputs, last.afterwards.positions)
            more = plan.split(arm.memory.read(plan, last.outputs))
            found[-1] = last.afterwards.compare(more, expected)
        if last.one.whole and are_correct(found[-1]):
            found[-1] = arm.compare_whole(last.one, last.outputs)
            full_checks = 1
    return tuple(found), full_checks
