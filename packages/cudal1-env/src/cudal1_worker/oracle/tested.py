"""A call of a reference to test for work that no output shows, and the faults to test it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cudal1_worker.oracle.dependence import Part, Result
from cudal1_worker.oracle.steps import Place


@dataclass(frozen=True)
class Fault:
    """One way to omit work."""

    text: str
    step: int | None = None
    """Number of the step; None for a fault in an input."""
    change: Callable[..., Any] | None = None
    """Executes the step with a fault, in `part` if there is one; None if a result is replaced."""
    rounds: bool = False
    """Whether `change` only rounds."""
    chooses: bool = False
    """Whether `change` puts an operand in place of the result of a choice."""
    scattered: bool = False
    """Whether it saves a part of the time only with others like it."""
    twin: Place | None = None
    """Name and number of the step in the float64 twin, if the fault is tested there: a program may round less."""
    place: int = 0
    """Position of the input to replace."""
    part: Part | None = None
    """Part to replace by another draw's, or to leave out of an operand; all by default."""
    before: int | None = None
    """Number of an earlier call whose result the step returns."""
    extreme: bool = False
    """Whether the step is a maximum or minimum; without `change` the fault is that it is only compared."""

    @property
    def operand(self) -> int | str | Result:
        """What of the step is changed."""
        return Result(0) if self.part is None or isinstance(self.part.target, int) else self.part.target[1]


@dataclass(frozen=True)
class Step:
    """A call to test."""

    name: str
    twin: Place
    """Its place in the float64 twin."""
    faults: list[Fault]
    """Those that concern the whole call."""
    shapes: dict[int | str | Result, tuple[int, ...]] = field(default_factory=dict[int | str | Result, tuple[int, ...]])
    """Shapes of its operands and results, whose parts are tested."""
    is_product: bool = False
    computes: bool = False
    """Whether it is a product, a function, or an opaque call that does more than move values."""
    is_pointwise: bool = False
    """Whether it is a pointwise function."""
    of_state: bool = False
    """Whether it computes, and something that it reads depends on the model's state."""
    terms: dict[int, int] = field(default_factory=dict[int, int])
    """Summed dimension of each factor of a product, by its position, if a part of the terms can be taken."""
    lower: str = ""
    """Precision to which parts of a product are rounded; empty for none."""
    share: float = 0.0
    """Share of the forward pass's time."""
    line: int | None = None
    """Line of the task's program that makes the call."""

    def located(self, text: str) -> str:
        """Return a text about the step, followed by its line."""
        return text if self.line is None else f"{text} (line {self.line})"


def is_scattered(fault: Fault) -> bool:
    """Return whether a fault saves a part of the time only with others like it.

    One of many products may always be rounded, or computed without a part: a program saves little by one, and outputs
    show what happens to all of them.
    """
    if fault.before is not None or fault.scattered or fault.rounds:
        return True
    return fault.step is not None and fault.part is not None and (fault.part.scattered or fault.part.by_gradient)
