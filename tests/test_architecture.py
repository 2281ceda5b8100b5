"""docs/architecture.md and docs/where.md name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = ("packages/cudal1-data/src", "packages/cudal1-env/src", "packages/cudal1-agent/src", "")
TASK = "softplus_mish"
"""Stands for NAME in a path."""


def concepts(text: str) -> dict[str, list[str]]:
    """Concepts of the table, each with its paths; a path without a package lies in the folder of the path before it."""
    table = text.split("| concept | file |", 1)[1].split("\n\n", 1)[0]
    found: dict[str, list[str]] = {}
    for concept, files in re.findall(r"^\| (?!---)(.+?) \| (.+) \|$", table, re.MULTILINE):
        folder, paths = "", list[str]()
        for name in re.findall(r"`([^`]+)`", files):
            path = name if name.split("/")[0].startswith(("cudal1_", "tests")) else folder + name
            folder = path.rstrip("/").rpartition("/")[0] + "/"
            paths.append(path)
        found[concept] = paths
    return found


def changes(text: str) -> list[tuple[str, str]]:
    """Rows of docs/where.md: a change, and the path where it begins."""
    return re.findall(r"^\| \d+\. (.+?) \| `([^`]+)` \| .+ \|$", text, re.MULTILINE)


def exists(repository: Path, path: str) -> bool:
    """Whether a file or folder is in a package's sources or in the repository's root."""
    return any((repository / source / path.replace("NAME", TASK)).exists() for source in SOURCES)


def test_each_concept_names_files_that_exist(repository: Path) -> None:
    table = concepts((repository / "docs/architecture.md").read_text())
    assert len(table) >= 25
    for concept, paths in table.items():
        for path in paths:
            assert exists(repository, path), f"{concept}: {path}"


def test_each_change_begins_at_a_path_of_the_architecture(repository: Path) -> None:
    named = {path for paths in concepts((repository / "docs/architecture.md").read_text()).values() for path in paths}
    rows = changes((repository / "docs/where.md").read_text())
    assert len(rows) == 20
    for change, path in rows:
        assert exists(repository, path), f"{change}: {path}"
        assert path in named, f"{change}: {path} is not in docs/architecture.md"
