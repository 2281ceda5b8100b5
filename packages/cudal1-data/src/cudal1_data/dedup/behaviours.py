"""Lookup of tasks by behaviour on small inputs: rewrites of one function agree even if their operators differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cudal1_data.tracing.tasks import Behaviour

_APART = 2e-5
"""Tolerance between two rewrites: it allows for an epsilon against division by zero, not for an approximate
activation."""


class Behaviours:
    """Tasks indexed by behaviour.

    >>> known = Behaviours([("a", ((4.0, 1.0, 0.25), (8.0, 1.0, 0.5))), ("b", ())])
    >>> known.find(((4.0, 1.000001, 0.25),)), known.find(((4.0, 1.0, 0.2501), (8.0, 1.0, 0.5))), known.find(())
    (('a',), ('a',), ())
    """

    def __init__(self, tasks: Iterable[tuple[str, Behaviour]]) -> None:
        self._known: dict[tuple[int, float], list[tuple[str, tuple[float, ...]]]] = {}
        for name, behaviour in tasks:
            for told in behaviour:
                self._known.setdefault((len(told), told[0]), []).append((name, told))

    def find(self, behaviour: Behaviour) -> tuple[str, ...]:
        """Return the tasks that behave the same at one size on one kind of inputs."""
        some = ((told, *known) for told in behaviour for known in self._known.get((len(told), told[0]), []))
        return tuple(dict.fromkeys(name for told, name, other in some if _alike(told, other)))


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(a - b) <= _APART * max(1.0, abs(a)) for a, b in zip(one, other, strict=True))
