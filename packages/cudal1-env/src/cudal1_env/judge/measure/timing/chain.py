"""One timed sample: calls of one arm, each released after the judge has read the outputs of the call before.

  judge   |-- untimed calls ------|= key in, GO =|        |= sample out =|= key in, GO =|        |= sample out =|
  worker                                         |= call =|                             |= call =|
  clock                           ^ it starts                                                      it stops ^

On a GPU a sample is such a chain; its length is secret. The inputs of all its calls lie in the worker's memory, each
under a mask of its own; the key of one is written when the sample of the call before was read. The clock never stops
between the first release and the last read. What the worker does while masks come off or samples leave is on the clock;
it can use no more than the overhead for it.

On a CPU a sample is one call. The worker stands still, confirmed, while its inputs are put and its last outputs are
overwritten; the clock runs from the moment at which it is let go until the judge has read its outputs from the stopped
process. So there is no first call, and nothing that a program could do before the clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire

from cudal1_env.judge.device.base import Output, Staging
from cudal1_env.judge.device.reading import Plan
from cudal1_env.judge.oracle.numerics import Comparison
from cudal1_env.judge.oracle.pool import InputSet
from cudal1_env.judge.oracle.samples import Samples, chosen_samples, whole_samples

if TYPE_CHECKING:
    from cudal1_env.judge.measure.arm import Arm

_ON_CLOCK_ELEMENTS = 8
"""Secret elements of each call of a chain that are read before the clock goes on: on a GPU each costs time."""


@dataclass(frozen=True)
class Sample:
    """What one timed sample showed."""

    call_ms: float
    """Latency of a call with the overhead, on average over the chain."""
    comparisons: tuple[tuple[Comparison, ...], ...]
    """For each call and output: the secret elements, or the whole output where the set says so."""
    full_checks: int
    """Calls whose whole outputs were compared."""
    reading_ms: float
    """How long the judge read while the worker was stopped; 0 where it was not."""
    untimed_s: float
    """How long the calls before the clock took; 0 where there are none."""


@dataclass
class _Link:
    """One call of a chain."""

    one: InputSet
    on_clock: Samples
    """What is read before the clock stops."""
    plan: Plan
    """The same as bytes, for outputs of the form that the last ones had."""
    afterwards: Samples
    """What is read behind the clock, if this is a chain's last call."""
    key: Sequence[int] = ()
    """Words that release the inputs of a chain's call; without them the worker has nothing of the inputs."""
    outputs: list[Output] = field(default_factory=list[Output])
    """As the worker described them."""
    data: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    """What was read."""
    stopped_ns: int = 0
    """When the worker was seen stopped, by the clock; 0 where it is not."""
    read_ns: int = 0
    """When its outputs had been read, by the clock."""


def timed_sample(arm: Arm, sets: Sequence[InputSet], untimed: Sequence[InputSet], *, empty: bool = False) -> Sample:
    """Make timed calls with an arm; it stands still before and after.

    Args:
        arm: In the timed loop.
        sets: Inputs that this arm never saw, one for each call; on a CPU one.
        untimed: Inputs of a chain's first calls, before the clock: they bring caches, clocks and the GPU's contexts
            into the state in which each later call finds them. The first takes half as long again as the fourth.
        empty: Everything but the calls themselves, with the last untimed call's outputs: tells the overhead.

    Raises:
        Fault: A call fails or breaks the contract.
    """
    arm.operation(wire.EMPTY if empty else wire.CALL)
    links = [_link(arm, one) for one in sets]
    if arm.device.chained:
        before = [_link(arm, one) for one in untimed]
        everything = (*before, *links)
        calls = [Staging(link.one.inputs, link.plan) for link in everything]
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
        elapsed_ns = _clocked(arm, links)
    comparisons, full_checks = ((), 0) if empty else _compared(arm, links)
    last = links[-1]
    with arm.contract():
        arm.memory.overwrite(last.outputs)
    arm.worker.drain()
    reading_ms = (last.read_ns - last.stopped_ns) * 1e-6 if last.stopped_ns else 0.0
    return Sample(elapsed_ns * 1e-6 / len(links), comparisons, full_checks, reading_ms, untimed_s)


def _clocked(arm: Arm, links: Sequence[_Link]) -> int:
    """Make calls; return the nanoseconds from the first release to the last read. This is all that the clock sees."""
    chained, now = arm.device.chained, time.perf_counter_ns
    began = ended = now()
    for link in links:
        turn = arm.go(link.key)  # the ready word, last
        if not chained:
            arm.thaw()
        page = arm.wait_for(turn)  # the done word
        if not chained:
            arm.freeze()
            link.stopped_ns = now()
        link.outputs = arm.outputs(page)
        link.data = arm.read(link.plan, link.on_clock, link.outputs)
        link.read_ns = ended = now()
    return ended - began


def _link(arm: Arm, one: InputSet) -> _Link:
    """Choose what is read of a call's outputs, and where, before the clock runs."""
    forms = arm.reader.known
    if not arm.device.chained:
        samples = whole_samples(one.answers)
        return _Link(one, samples, Plan(forms, samples.positions), samples)
    on_clock, afterwards = chosen_samples(one.answers, _ON_CLOCK_ELEMENTS, arm.random)
    return _Link(one, on_clock, Plan(forms, on_clock.positions), afterwards)


def _compared(arm: Arm, links: Sequence[_Link]) -> tuple[tuple[tuple[Comparison, ...], ...], int]:
    """Compare what was read, then more of the last call's outputs; also how many calls were compared whole."""
    expected = arm.reader.expected
    found = [tuple(link.on_clock.compare(link.plan.split(link.data), expected)) for link in links]
    last, full_checks = links[-1], 0
    with arm.contract():
        if arm.device.chained and _right(found[-1]):
            plan = Plan(last.outputs, last.afterwards.positions)
            more = plan.split(arm.memory.read(plan, last.outputs))
            found[-1] = tuple(last.afterwards.compare(more, expected))
        if last.one.whole and _right(found[-1]):
            found[-1] = arm.compare_whole(last.one, last.outputs)
            full_checks = 1
    return tuple(found), full_checks


def _right(comparisons: Sequence[Comparison]) -> bool:
    return all(one.correct for one in comparisons)
