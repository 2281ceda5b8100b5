"""docs/architecture.md names files that exist, and where 20 common changes begin."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = ("packages/cudal1-data/src", "packages/cudal1-env/src", "packages/cudal1-agent/src", "")
TASK = "softplus_mish"
"""Stands for NAME in a path."""


def concepts(text: str) -> dict[str, list[str]]:
    """Concepts of the table, each with its paths; a path without a package lies in the folder of the path before it."""
    table = text.split("| concept | file | to change it |", 1)[1].split("\n\n", 1)[0]
    found: dict[str, list[str]] = {}
    for concept, files in re.findall(r"^\| (?!---)(.+?) \| (.+?) \| .*\|$", table, re.MULTILINE):
        folder, paths = "", list[str]()
        for name in re.findall(r"`([^`]+)`", files):
            path = name if name.split("/")[0].startswith(("cudal1_", "tests")) else folder + name
            folder = path.rstrip("/").rpartition("/")[0] + "/"
            paths.append(path)
        found[concept] = paths
    return found


def changes(text: str) -> list[int]:
    """Numbers of the changes in the table's last column, in order."""
    return [int(number) for number in re.findall(r"^\| .+ \| (\d+)\. .+ \|$", text, re.MULTILINE)]


def exists(repository: Path, path: str) -> bool:
    """Whether a file or folder is in a package's sources or in the repository's root."""
    return any((repository / source / path.replace("NAME", TASK)).exists() for source in SOURCES)


def test_each_concept_names_files_that_exist(repository: Path) -> None:
    table = concepts((repository / "docs/architecture.md").read_text())
    assert len(table) >= 25
    for concept, paths in table.items():
        for path in paths:
            assert exists(repository, path), f"{concept}: {path}"


def test_twenty_changes_begin_at_a_concept(repository: Path) -> None:
    assert changes((repository / "docs/architecture.md").read_text()) == list(range(1, 21))
