"""The table of docs/threats.md and the programs of tests/exploits tell the same story."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXPLOITS = ROOT / "tests" / "exploits"
ROW = re.compile(r"^\| (H\d\d) \| (.+?) \| (yes|no) \| (.+?) \| (.+?) \|$", re.MULTILINE)
LAST_ID = 57


@dataclass(frozen=True)
class Threat:
    """One row of the table."""

    id: str
    on_cpu: bool
    programs: tuple[str, ...]


def threats() -> list[Threat]:
    text = (ROOT / "docs" / "threats.md").read_text()
    return [
        Threat(match[1], match[3] == "yes", tuple(re.findall(r"`([^`]+)`", match[5]))) for match in ROW.finditer(text)
    ]


def test_every_threat_is_in_the_table_once() -> None:
    assert sorted(threat.id for threat in threats()) == [f"H{number:02}" for number in range(1, LAST_ID + 1)]


def test_no_row_is_malformed() -> None:
    lines = (ROOT / "docs" / "threats.md").read_text().splitlines()
    assert len([line for line in lines if line.startswith("| H")]) == len(threats())
