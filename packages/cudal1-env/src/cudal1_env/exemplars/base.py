"""What the rules for choosing exemplars share: the exemplar, the protocol, and what may be shown at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cudal1_env.records import PROTOCOL_VERSION, Evaluation


@dataclass(frozen=True)
class Exemplar:
    """A correct program with its score, as a prompt shows it."""

    source: str
    """Program text that defines `ModelNew`."""
    speedup: float
    """Reference latency over program latency, best estimate; 2.0 is twice as fast. At most 1 where no more is paid."""


class Exemplars(Protocol):
    """A rule that chooses what a prompt shows. Its settings are its fields; a choice changes nothing."""

    def choose(self, variants: Sequence[Exemplar], n: int, rng: np.random.Generator) -> list[Exemplar]:
        """Draw at most `n` exemplars with different sources, in the order drawn.

        Args:
            variants: What there is, in order of arrival; the same source may come several times.
            n: How many are wanted; fewer come where the rule finds fewer.
            rng: The only source of chance.
        """
        ...


def distinct(variants: Iterable[Exemplar]) -> list[Exemplar]:
    """Keep one of each source, in order of first arrival: the one with the (lower) median score.

    A policy repeats itself. The median and not the maximum: the more often a program is measured, the
    more the maximum flatters it.

    >>> distinct([Exemplar("a", 1.0), Exemplar("b", 2.0), Exemplar("a", 3.0), Exemplar("a", 1.2)])
    [Exemplar(source='a', speedup=1.2), Exemplar(source='b', speedup=2.0)]
    """
    groups: dict[str, list[Exemplar]] = {}
    for variant in variants:
        groups.setdefault(variant.source, []).append(variant)
    return [sorted(group, key=lambda one: one.speedup)[(len(group) - 1) // 2] for group in groups.values()]


def scored(
    evaluations: Iterable[Evaluation], *, task_source: str | None = None, most: float = math.inf
) -> list[Exemplar]:
    """Return what may be shown of an archive's evaluations: the correct ones that can be compared.

    Args:
        evaluations: In order of arrival.
        task_source: Keep only those of this reference program; a task's id is the same on every device,
            its size is not.
        most: The largest speedup that the task pays, and so the largest that is shown; see `reward`.
    """
    return [
        Exemplar(evaluation.source, min(_score(evaluation, evaluation.speedup.point), most))
        for evaluation in evaluations
        if evaluation.correct
        and evaluation.speedup is not None
        and evaluation.protocol == PROTOCOL_VERSION
        and task_source in (None, evaluation.task_source)
    ]


def _score(evaluation: Evaluation, point: float) -> float:
    """The best estimate, at most 1 where nothing above 1 is paid: a prompt must not recommend what earns nothing."""
    unpaid = evaluation.rewarded_low is not None and evaluation.rewarded_low <= 1.0
    return min(point, 1.0) if unpaid else point
