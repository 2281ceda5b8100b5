"""The paper's "top techniques" table: mean speedups of programs by technique."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from pydantic import BaseModel, ConfigDict, Field

from cudal1_data.techniques.classify import Tags
from cudal1_data.techniques.patterns import BACKEND_NAMES, TECHNIQUES


class TechniqueRow(BaseModel):
    """One technique, or one backend."""

    model_config = ConfigDict(frozen=True)

    tag: str
    """Its tag."""
    name: str
    """The paper's name for it."""
    programs: int = Field(ge=1)
    """Programs that use it."""
    correct: int = Field(ge=0)
    """Programs among them with a speedup."""
    mean: float | None
    """Mean speedup of these; None if there are none."""
    geometric_mean: float | None
    """Geometric mean of their speedups, less sensitive to single programs."""


def top_techniques(programs: Iterable[tuple[Tags, float | None]]) -> tuple[TechniqueRow, ...]:
    """Return a row for each technique, then one for each backend, the highest mean first.

    A program counts for each of its techniques, so rows overlap. A high mean does not show a cause: a program may be
    fast because of another technique.

    Args:
        programs: Tags and speedup of each program; None if it is incorrect.
    """
    found: dict[str, list[float | None]] = {}
    for tags, speedup in programs:
        for tag in (*tags.techniques, tags.backend):
            found.setdefault(tag, []).append(speedup)
    names: dict[str, str] = {**TECHNIQUES, **BACKEND_NAMES}
    rows = [_row(tag, names[tag], speedups) for tag, speedups in found.items()]
    return tuple(sorted(rows, key=lambda row: (row.tag in BACKEND_NAMES, -(row.mean or 0.0), row.tag)))


def _row(tag: str, name: str, speedups: list[float | None]) -> TechniqueRow:
    known = [speedup for speedup in speedups if speedup is not None]
    return TechniqueRow(
        tag=tag,
        name=name,
        programs=len(speedups),
        correct=len(known),
        mean=fmean(known) if known else None,
        geometric_mean=math.exp(fmean(map(math.log, known))) if known else None,
    )
