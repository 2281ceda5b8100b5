"""What of a turn's outputs is read on the clock, what after it, and what is compared whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cudal1_env.judge.numerics import Answer, Array, Comparison, Expected, compare_samples
from cudal1_env.judge.pool import InputSet

_WHOLE_IN_TURN = 2
"""Calls of a turn whose whole outputs are compared, at most: that takes longer than the calls."""
_SAMPLES_AFTER = 256
"""Elements that are read after the clock has stopped, over all outputs of a turn, where few are read before."""


def chosen_samples(
    answers: list[Answer], pieces: int | None, random: np.random.Generator
) -> tuple[list[Answer], list[Answer]]:
    """Return the answers with the samples that are read on the clock, and with those that are read after it.

    On a GPU each element costs. All turns read equally many, however many calls they make, and something of the last
    call in any case.

    Args:
        answers: Of each call and output of a turn.
        pieces: How many elements are read on the clock; None: all that are known, and none after it.
        random: Chooses.
    """
    if pieces is None:
        return answers, []
    share = np.full(len(answers), pieces // len(answers))
    left = pieces - int(share.sum())
    share[random.permutation(len(answers) - 1)[: max(0, left - 1)]] += 1
    share[-1] += pieces - int(share.sum())
    more = max(4, _SAMPLES_AFTER // len(answers))
    return (
        [_some(answer, number, random) for answer, number in zip(answers, share.tolist(), strict=True)],
        [_some(answer, more, random) for answer in answers],
    )


def _some(answer: Answer, number: int, random: np.random.Generator) -> Answer:
    """Return the answer with some of its sample."""
    size = answer.positions.size
    return answer if size <= number else answer.some(random.permutation(size)[:number])


def chosen_whole(sets: Sequence[InputSet], random: np.random.Generator) -> list[int]:
    """Places of the calls whose whole outputs are compared: a secret few of those whose whole answers are kept."""
    kept = [place for place, one in enumerate(sets) if one.whole]
    return random.permutation(kept)[:_WHOLE_IN_TURN].tolist()


def compare_all(got: Sequence[Array], answers: Sequence[Answer], expected: Sequence[Expected]) -> list[Comparison]:
    """Compare samples of all outputs of one call or several.

    Args:
        got: What the worker left, decoded, for each call and output.
        answers: Right values, for each.
        expected: The outputs of one call.
    """
    result = [Comparison(0.0, True)] * len(answers)
    for place, want in enumerate(expected):
        mine = slice(place, None, len(expected))
        result[mine] = compare_samples(got[mine], answers[mine], want)
    return result
