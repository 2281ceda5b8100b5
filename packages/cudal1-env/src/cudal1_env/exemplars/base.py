"""Parts shared by the exemplar rules: the exemplar, the protocol, and the filter for programs that may be shown."""

from __future__ import annotations

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
    """Reference latency over program latency, best estimate; 2.0 is twice as fast. At most 1 if the task pays no more.
    """


class Exemplars(Protocol):
    """A rule that chooses the exemplars of a prompt. Its settings are its fields; `choose` changes no state."""

    def choose(self, variants: Sequence[Exemplar], n: int, rng: np.random.Generator) -> list[Exemplar]:
        """Draw at most `n` exemplars with different sources, in the order drawn.

        Args:
            variants: All candidates for exemplars, in order of arrival; the same source may occur several times.
            n: Number requested; the rule may find fewer.
            rng: The only source of randomness.
        """
        ...


def distinct(variants: Iterable[Exemplar]) -> list[Exemplar]:
    """Keep one exemplar of each source, in order of first arrival: the one with the (lower) median score.

    A policy may write the same program several times. The maximum would overestimate a program more the more often it
    is measured; the median does not.

    >>> distinct([Exemplar("a", 1.0), Exemplar("b", 2.0), Exemplar("a", 3.0), Exemplar("a", 1.2)])
    [Exemplar(source='a', speedup=1.2), Exemplar(source='b', speedup=2.0)]
    """
    groups: dict[str, list[Exemplar]] = {}
    for variant in variants:
        groups.setdefault(variant.source, []).append(variant)
    return [sorted(group, key=lambda one: one.speedup)[(len(group) - 1) // 2] for group in groups.values()]


def scored(evaluations: Iterable[Evaluation], *, task_source: str | None = None) -> list[Exemplar]:
    """Return the exemplars among an archive's evaluations: the correct ones that can be compared.

    Args:
        evaluations: Evaluations in order of arrival.
        task_source: Keep only evaluations of this reference program. A task has the same id on every device, but not
            the same size.
    """
    return [
        Exemplar(evaluation.source, _score(evaluation, evaluation.speedup.point))
        for evaluation in evaluations
        if evaluation.correct
        and evaluation.speedup is not None
        and evaluation.protocol == PROTOCOL_VERSION
        and task_source in (None, evaluation.task_source)
    ]


def _score(evaluation: Evaluation, point: float) -> float:
    """Return the best estimate, capped at 1 if the task pays no more: prompts must not recommend unpaid speedups."""
    unpaid = evaluation.rewarded_low is not None and evaluation.rewarded_low <= 1.0
    return min(point, 1.0) if unpaid else point
