"""Write the last column of docs/threats.md: the programs of tests/exploits that try each threat.

uv run scripts/threats.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "threats.md"
EXPLOITS = ROOT / "tests" / "exploits"
HONEST = ".honest.py"

ROW = re.compile(r"^(\| (H\d\d) \| .+ \| (yes|no) \| .+ \|) ([^|]+) \|$", re.MULTILINE)
"""A row: all but its last cell, the threat's id, whether it exists on a CPU, the last cell."""


@dataclass(frozen=True)
class Threat:
    """One row of the table."""

    id: str
    on_cpu: bool
    programs: tuple[str, ...]
    """File names without folder and ending, in order."""


def threats(text: str) -> list[Threat]:
    """Return the rows of the table.

    >>> threats("| H02 | answer at once | yes | P4 | `h02_thread`, `h02_child` |")
    [Threat(id='H02', on_cpu=True, programs=('h02_thread', 'h02_child'))]
    """
    return [Threat(row[2], row[3] == "yes", tuple(re.findall(r"`([^`]+)`", row[4]))) for row in ROW.finditer(text)]


def attacks() -> list[Path]:
    """Return the programs that try a threat, without their honest look-alikes; those for a GPU come last."""
    paths = [path for folder in (EXPLOITS, EXPLOITS / "cuda") for path in sorted(folder.glob("h[0-9][0-9]_*.py"))]
    return [path for path in paths if not path.name.endswith(HONEST)]


def name(path: Path) -> str:
    """Return a program's name in the table.

    >>> name(Path("h02_thread.py")), name(Path("cuda/h02_thread.py"))
    ('h02_thread', 'cuda/h02_thread')
    """
    return f"cuda/{path.stem}" if path.parent.name == "cuda" else path.stem


def threat_id(path: Path) -> str:
    """Return the threat's id from a program's name.

    >>> threat_id(Path("h02_thread.py"))
    'H02'
    """
    return path.name[:3].upper()


def filled(text: str, programs: list[Path]) -> str:
    """Return the page with its last column rewritten; `-` where no program tries the threat.

    >>> filled("| H02 | answer at once | yes | P4 | - |", [Path("h02_thread.py")])
    '| H02 | answer at once | yes | P4 | `h02_thread` |'
    """

    def row(match: re.Match[str]) -> str:
        names = ", ".join(f"`{name(path)}`" for path in programs if threat_id(path) == match[2])
        return f"{match[1]} {names or '-'} |"

    return ROW.sub(row, text)


if __name__ == "__main__":
    TABLE.write_text(filled(TABLE.read_text(), attacks()))
