"""Shares of correct answers with their intervals: correct@1 and correct@k over tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

K = 8
"""k of correct@k, if each task has that many answers."""

Z = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


class Share(BaseModel):
    """A share with its 95 % interval."""

    model_config = ConfigDict(frozen=True)

    point: float = Field(ge=0, le=1)
    """Point estimate."""
    low: float = Field(ge=0, le=1)
    """Lower end."""
    high: float = Field(ge=0, le=1)
    """Upper end."""

    def text(self) -> str:
        """Return percentages.

        >>> wilson(0.5, 10).text()
        '50 % (24 to 76)'
        """
        return f"{100 * self.point:.0f} % ({100 * self.low:.0f} to {100 * self.high:.0f})"


class Success(BaseModel):
    """How often answers to a set of tasks are correct."""

    model_config = ConfigDict(frozen=True)

    tasks: int = Field(ge=1)
    """Tasks."""
    answers: int = Field(ge=1)
    """Answers to all of them."""
    at_1: Share
    """Probability that one answer is correct, averaged over tasks."""
    k: int | None = None
    """Answers that `at_k` draws; None if a task has only one answer."""
    at_k: Share | None = None
    """Probability that at least one of `k` answers is correct, averaged over tasks."""
    own: Share | None = None
    """Probability that one answer is correct and not a copy of its reference; None in records of earlier versions."""


def success(counts: Sequence[tuple[int, int]], *, own: Sequence[int] | None = None) -> Success:
    """Return the figures for a set of tasks.

    Args:
        counts: For each task, how many answers it has and how many of them are correct.
        own: For each task, how many answers are correct and not copies of their reference; None if that is unknown.

    Raises:
        ValueError: There is no task, or a task without an answer.

    >>> found = success([(2, 1), (2, 2), (2, 0), (2, 0)])
    >>> found.at_1.point, found.k, found.at_k.point
    (0.375, 2, 0.5)
    """
    if not counts:
        raise ValueError("there are no tasks to count; pass at least one")
    k = min(K, *(answers for answers, _ in counts))

    def mean(drawn: int, pairs: Sequence[tuple[int, int]] = counts) -> Share:
        values = [correct_at(drawn, answers, correct) for answers, correct in pairs]
        return wilson(math.fsum(values) / len(values), len(values))

    return Success(
        tasks=len(counts),
        answers=sum(answers for answers, _ in counts),
        at_1=mean(1),
        k=k if k > 1 else None,
        at_k=mean(k) if k > 1 else None,
        own=None if own is None else mean(1, [(answers, new) for (answers, _), new in zip(counts, own, strict=True)]),
    )


def correct_at(k: int, answers: int, correct: int) -> float:
    """Return the unbiased estimate that at least one of k answers is correct: 1 - C(n - c, k) / C(n, k).

    Source: Chen et al., arXiv 2107.03374, equation 1 (pass@k). Answers must be independent draws.

    Args:
        k: Answers that are drawn.
        answers: n, all answers, at least k.
        correct: c, correct answers.

    Raises:
        ValueError: There are too few answers, or more correct ones than answers.

    >>> correct_at(1, 4, 3), round(correct_at(2, 4, 1), 3)
    (0.75, 0.5)
    """
    if not 1 <= k <= answers or not 0 <= correct <= answers:
        raise ValueError(f"{k=} and {correct=} do not fit {answers=}: k is 1 to the answers, correct 0 to the answers")
    return 1 - math.comb(answers - correct, k) / math.comb(answers, k)


def wilson(share: float, count: int) -> Share:
    """Return a share with Wilson's 95 % score interval.

    (p + z^2/2n -+ z sqrt(p(1 - p)/n + z^2/4n^2)) / (1 + z^2/n) (Wilson 1927). `scipy.stats.binomtest` has it for
    counts. Here the share may also be the mean of values between 0 and 1 over independent tasks. Their variance is at
    most that of zeros and ones with the same mean, so the interval is then wider than necessary.

    Args:
        share: p, the share or mean.
        count: n, independent tasks.
    """
    squared = Z * Z / count
    centre = (share + squared / 2) / (1 + squared)
    half = Z * math.sqrt(max(share * (1 - share), 0.0) / count + squared / (4 * count)) / (1 + squared)
    return Share(point=share, low=max(min(centre - half, share), 0.0), high=min(max(centre + half, share), 1.0))
