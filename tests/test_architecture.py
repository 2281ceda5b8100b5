"""docs/architecture.md names files that are there."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = ("packages/cudal1-data/src", "packages/cudal1-env/src", "packages/cudal1-agent/src", "")


def concepts(text: str) -> dict[str, list[str]]:
    """Concepts of the table, each with its paths; one without a folder lies in the folder of the one before."""
    table = text.split("| concept | file |", 1)[1].split("\n\n", 1)[0]
    found: dict[str, list[str]] = {}
    for concept, files in re.findall(r"^\| (?!---)(.+?) \| (.+) \|$", table, re.MULTILINE):
        folder, paths = "", list[str]()
        for name in re.findall(r"`([^`]+)`", files):
            path = name if name.split("/")[0].startswith(("cudal1_", "tests")) else folder + name
            folder = path.rstrip("/").rpartition("/")[0] + "/"
            paths.append(path.replace("NAME", "softplus_mish"))
        found[concept] = paths
    return found


def test_each_concept_names_files_that_exist(repository: Path) -> None:
    table = concepts((repository / "docs/architecture.md").read_text())
    assert len(table) == 25
    for concept, paths in table.items():
        for path in paths:
            assert any((repository / source / path).exists() for source in SOURCES), f"{concept}: {path}"
