"""Input sets, as the pool hands them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cudal1_env.judge.device.tensors import Array
from cudal1_env.judge.oracle.numerics import Answer, Comparison


@dataclass(frozen=True)
class InputSet:
    """One input set and its answers."""

    index: int
    distribution: str
    inputs: Array
    answers: tuple[Answer, ...]
    widened: Callable[[], tuple[Answer, ...]]
    """Makes the answers again, with tolerances that also count the reference's errors on moved inputs."""

    @property
    def whole(self) -> bool:
        """Whether whole outputs are compared on this set."""
        return all(answer.whole is not None for answer in self.answers)

    @property
    def size_bytes(self) -> int:
        """Memory of the set."""
        return self.inputs.nbytes + sum(
            a.values.nbytes
            + a.positions.nbytes
            + a.limits.nbytes
            + sum(part.nbytes for part in (a.whole, a.whole_limits) if part is not None)
            for a in self.answers
        )

    def decide(self, comparison: Callable[[Sequence[Answer]], Sequence[Comparison]]) -> tuple[Comparison, ...]:
        """Compare outputs with the answers; if an output is incorrect, compare with the widened answers instead.

        Widened answers cost four times as much as the set, and few honest programs need them (decision 002).

        Args:
            comparison: Compares the outputs with answers.
        """
        found = tuple(comparison(self.answers))
        if are_correct(found):
            return found
        pairs = zip(self.widened(), self.answers, strict=True)
        return tuple(comparison([replace(wide, bulk_limits=own.whole_limits) for wide, own in pairs]))


def are_correct(comparisons: Sequence[Comparison]) -> bool:
    """Whether all outputs are correct."""
    return all(one.correct for one in comparisons)
