"""Geometry of the page's charts: numbers to places in per cent. The SVG is in `charts.html`.

Places are in per cent of the chart's width or height, so one drawing fits every screen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

Item = TypeVar("Item")

MAX_POINTS = 400
"""Maximum number of points of a line; longer lines are thinned."""


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic scale from numbers to per cent."""

    low: float
    high: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return a place from 0 to 100; numbers outside the scale are put on the edge."""
        low, high, value = (math.log(max(one, 1e-12)) if self.log else one for one in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return round(100 * min(max(share, 0.0), 1.0), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and labels of round numbers, at most six."""
        values = _log_ticks(self.low, self.high) if self.log else _linear_ticks(self.low, self.high)
        return [(self(value), f"{value:g}") for value in values]


def speedup_scale(points: Sequence[float]) -> Scale:
    """Return a logarithmic scale that holds the speedups and 1, with room for their intervals.

    An interval may be hundreds of times as wide as all others together; it is then cut at the edge.
    """
    found = [value for value in points if value > 0 and math.isfinite(value)] + [0.8, 1.25]
    return Scale(min(found) / 1.5, max(found) * 1.5, log=True)


def _linear_ticks(low: float, high: float) -> list[float]:
    if not high > low:
        return [low]
    raw = (high - low) / 4
    step = 10 ** math.floor(math.log10(raw))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in decades for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) <= 6:
            return found
    return found[:: math.ceil(len(found) / 6)]


@dataclass(frozen=True)
class Chart:
    """Lines or areas over one horizontal axis."""

    title: str
    series: list[tuple[str, str]]
    """Label and points of each, in the form of the SVG attribute `points`."""
    ticks: list[tuple[float, str]]
    """Places from the bottom, and labels, of the horizontal grid."""
    ends: tuple[str, str]
    """Labels below the left and the right end."""
    last: str
    """The chart in one sentence, for readers who cannot see it."""
    areas: bool = False


def line_chart(
    title: str, lines: Mapping[str, Sequence[tuple[float, float | None]]], *, unit: str = "step"
) -> Chart | None:
    """Return a chart of lines, None if no line has a point.

    Args:
        title: Its title.
        lines: Points (x, y) of each line, by label; points without a finite y are left out.
        unit: What x counts.
    """
    known = {label: _thinned([(x, y) for x, y in line if _finite(y)]) for label, line in lines.items()}
    known = {label: line for label, line in known.items() if line}
    if not known:
        return None
    xs, ys = ([point[axis] for line in known.values() for point in line] for axis in (0, 1))
    room = (max(ys) - min(ys)) * 0.06 or abs(ys[0]) * 0.1 or 1.0
    across, up = (
        Scale(min(xs), max(xs)),
        Scale(max(min(ys) - room, 0.0) if min(ys) >= 0 else min(ys) - room, max(ys) + room),
    )
    series = [
        (label, " ".join(f"{across(x)},{round(100 - up(y), 2)}" for x, y in line)) for label, line in known.items()
    ]
    said = "; ".join(f"{label} from {line[0][1]:.3g} to {line[-1][1]:.3g}" for label, line in known.items())
    return Chart(title, series, up.ticks(), _ends(xs, unit), f"{title}: {said}")


def area_chart(title: str, layers: Mapping[str, Sequence[float]], xs: Sequence[float], *, unit: str) -> Chart | None:
    """Return a chart of stacked areas, None if there is nothing to stack.

    Args:
        title: Its title.
        layers: Heights of each layer at each x, by label, from the bottom.
        xs: Places on the horizontal axis, ascending.
        unit: What x counts.
    """
    tops = [sum(heights) for heights in zip(*layers.values(), strict=True)]
    if len(xs) < 2 or not max(tops, default=0.0):
        return None
    keep = _thinned(list(range(len(xs))))
    across, up = Scale(xs[0], xs[-1]), Scale(0.0, max(tops))
    below = [0.0] * len(xs)
    series: list[tuple[str, str]] = []
    for label, heights in layers.items():
        above = [one + other for one, other in zip(below, heights, strict=True)]
        corners = [(xs[at], above[at]) for at in keep] + [(xs[at], below[at]) for at in reversed(keep)]
        series.append((label, " ".join(f"{across(x)},{round(100 - up(y), 2)}" for x, y in corners)))
        below = above
    said = ", ".join(f"{heights[-1]:.3g} {label}" for label, heights in layers.items())
    return Chart(title, series, up.ticks(), _ends(xs, unit), f"{title}: at the end {said}", areas=True)


def _ends(xs: Sequence[float], unit: str) -> tuple[str, str]:
    return f"{unit} {min(xs):g}", f"{max(xs):g}"


def _finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _thinned(items: list[Item]) -> list[Item]:
    if len(items) <= MAX_POINTS:
        return items
    return [items[round(number * (len(items) - 1) / (MAX_POINTS - 1))] for number in range(MAX_POINTS)]


@dataclass(frozen=True)
class Part:
    """A part of a bar."""

    label: str
    start: float
    width: float
    text: str


def parts(values: Mapping[str, float], whole: float, unit: str = "") -> list[Part]:
    """Return the parts of a bar on which `whole` is 100 per cent."""
    found: list[Part] = []
    start = 0.0
    for label, value in values.items():
        width = 100 * value / whole if whole else 0.0
        found.append(Part(label, round(start, 2), round(width, 2), f"{label}: {value:.4g}{unit}"))
        start += width
    return found
