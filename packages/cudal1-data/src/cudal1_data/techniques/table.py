"""The paper's "top techniques" table: how fast programs are that show a technique."""

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
    """Programs that show it."""
    correct: int = Field(ge=0)
    """Those of them that have a speedup."""
    mean: float | None
    """Mean speedup of these; None where there are none."""
    geometric_mean: float | None
    """Geometric mean of their speedups: less led by single programs."""


def top_techniques(programs: Iterable[tuple[Tags, float | None]]) -> tuple[TechniqueRow, ...]:
    """Return a row for each technique and each backend that a program shows, the highest mean first.

    A program counts for each of its techniques, so rows overlap, and a high mean is no cause: what is fast for
    one reason may show another technique too.

    Args:
        programs: Tags and speedup of each program; None where it is not correct.
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
