"""Options that every campaign has: parts, known results, and joining parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A campaign in parts, each with its own results file, and the files put together."""

    part: str = ""
    """K/N: only every N-th task, from the K-th on, for several GPUs or machines with an own `out` each."""
    known: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")] = ()
    """Results files of other runs: what they hold is not judged again, and is not copied to `out`."""
    join: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")] = ()
    """Judge nothing: copy what `out` lacks from these results files, and report on all."""
