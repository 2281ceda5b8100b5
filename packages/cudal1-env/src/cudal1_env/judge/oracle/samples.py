"""Input sets, as the pool hands them out, and which output elements are compared on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cudal1_env.judge.device.tensors import Array, Expected
from cudal1_env.judge.oracle.numerics import Answer, Comparison, compare

_SAMPLES_AFTER = 256
"""Elements of a call read after the clock, over all its outputs, if only few are read on the clock."""


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


@dataclass(frozen=True)
class Samples:
    """Parts of the sampled elements of several outputs."""

    one: InputSet
    parts: Sequence[slice]

    @property
    def positions(self) -> list[npt.NDArray[np.int64]]:
        """Flat positions of the elements, for each output."""
        return [answer.positions[part] for answer, part in zip(self.one.answers, self.parts, strict=True)]

    def compare(self, got: Sequence[Array], expected: Sequence[Expected]) -> tuple[Comparison, ...]:
        """Compare the elements read of each output."""
        return self.one.decide(lambda answers: self._compared(got, expected, answers))

    def _compared(
        self, got: Sequence[Array], expected: Sequence[Expected], answers: Sequence[Answer]
    ) -> list[Comparison]:
        return [
            compare(
                one,
                replace(answer, values=answer.values[part], limits=answer.limits[part]),
                out,
                whole=False,
            )
            for one, answer, part, out in zip(got, answers, self.parts, expected, strict=True)
        ]


def whole_samples(one: InputSet) -> Samples:
    """Return all sampled elements."""
    return Samples(one, [slice(None)] * len(one.answers))


def chosen_samples(one: InputSet, pieces: int, random: np.random.Generator) -> tuple[Samples, Samples]:
    """Return the elements to read on the clock and those to read after it.

    On a GPU each element costs time on the clock. The last output gets at least one element. The sampled elements are
    in random order, so any part of them is a random sample.

    Args:
        one: The input set of a call.
        pieces: Number of elements to read on the clock, over all outputs.
        random: Draws the elements.
    """
    count = len(one.answers)
    share = np.full(count, pieces // count)
    left = pieces - int(share.sum())
    share[random.permutation(count - 1)[: max(0, left - 1)]] += 1
    share[-1] += pieces - int(share.sum())
    more = np.full(count, max(4, _SAMPLES_AFTER // count))
    return _parts(one, share, random), _parts(one, more, random)


def _parts(one: InputSet, numbers: npt.NDArray[np.int64], random: np.random.Generator) -> Samples:
    """Return a random part of each output's sampled elements, with the given numbers of elements."""
    sizes = np.array([answer.positions.size for answer in one.answers])
    numbers = np.minimum(numbers, sizes)
    first = random.integers(0, sizes - numbers + 1)
    parts = [slice(begin, end) for begin, end in zip(first.tolist(), (first + numbers).tolist(), strict=True)]
    return Samples(one, parts)
