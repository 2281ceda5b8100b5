"""Which elements of a sample's outputs are read on the clock, and which after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cudal1_env.judge.device.tensors import Array, Expected
from cudal1_env.judge.oracle.numerics import Answer, Comparison, compare

_SAMPLES_AFTER = 256
"""Elements that are read after the clock has stopped, over all outputs of a sample, where few are read before."""


@dataclass(frozen=True)
class Samples:
    """Parts of the samples of several outputs."""

    answers: Sequence[Answer]
    parts: Sequence[slice]

    @property
    def positions(self) -> list[npt.NDArray[np.int64]]:
        """Flat positions, for each output."""
        return [answer.positions[part] for answer, part in zip(self.answers, self.parts, strict=True)]

    def compare(self, got: Sequence[Array], expected: Sequence[Expected]) -> list[Comparison]:
        """Compare the elements that were read, for each call and output."""
        return [
            compare(
                one,
                replace(answer, values=answer.values[part], limits=answer.limits[part]),
                expected[place % len(expected)],
                whole=False,
            )
            for place, (one, answer, part) in enumerate(zip(got, self.answers, self.parts, strict=True))
        ]


def whole_samples(answers: Sequence[Answer]) -> Samples:
    """All of the samples."""
    return Samples(answers, [slice(None)] * len(answers))


def chosen_samples(answers: Sequence[Answer], pieces: int, random: np.random.Generator) -> tuple[Samples, Samples]:
    """Return the samples that are read on the clock, and those that are read after it.

    On a GPU each element costs. All samples read equally many, however many calls they make, and something of the last
    call in any case. A sample is in random order, so that any part of it is one.

    Args:
        answers: The right values of each output of a call.
        pieces: Number of elements that are read on the clock.
        random: Chooses them.
    """
    count = len(answers)
    share = np.full(count, pieces // count)
    left = pieces - int(share.sum())
    share[random.permutation(count - 1)[: max(0, left - 1)]] += 1
    share[-1] += pieces - int(share.sum())
    more = np.full(count, max(4, _SAMPLES_AFTER // count))
    return _parts(answers, share, random), _parts(answers, more, random)


def _parts(answers: Sequence[Answer], numbers: npt.NDArray[np.int64], random: np.random.Generator) -> Samples:
    """Return a random part of each sample, of as many elements."""
    sizes = np.array([answer.positions.size for answer in answers])
    numbers = np.minimum(numbers, sizes)
    first = random.integers(0, sizes - numbers + 1)
    parts = [slice(begin, end) for begin, end in zip(first.tolist(), (first + numbers).tolist(), strict=True)]
    return Samples(answers, parts)
