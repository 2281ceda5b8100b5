"""Chooses which output elements of a timed sample are read on the clock, and which after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cudal1_env.judge.device.tensors import Array, Expected
from cudal1_env.judge.oracle.numerics import Answer, Comparison, compare
from cudal1_env.judge.oracle.sets import InputSet

_SAMPLES_AFTER = 256
"""Elements of a call read after the clock, over all its outputs, if only few are read on the clock."""


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
                expected[place % len(expected)],
                whole=False,
            )
            for place, (one, answer, part) in enumerate(zip(got, answers, self.parts, strict=True))
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
