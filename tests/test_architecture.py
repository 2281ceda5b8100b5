"""docs/architecture.md and CONTRIBUTING.md name existing files, and names that occur in them."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = ("packages/cudal1-data/src", "packages/cudal1-env/src", "packages/cudal1-agent/src", "")
TASK = "softplus_mish"
"""Replaces NAME in a path."""


def concepts(text: str) -> dict[str, list[str]]:
    """Return the table's concepts with their paths; a path without a package is in the folder of the previous path."""
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
    """Return the numbers of the changes in the table's last column, in order."""
    return [int(number) for number in re.findall(r"^\| .+ \| (\d+)\. .+ \|$", text, re.MULTILINE)]


def exists(repository: Path, path: str) -> bool:
    """Return whether a file or folder is in a package's sources or in the repository's root."""
    return any((repository / source / path.replace("NAME", TASK)).exists() for source in SOURCES)


def test_each_concept_names_files_that_exist(repository: Path) -> None:
    table = concepts((repository / "docs/architecture.md").read_text())
    assert len(table) >= 25
    for concept, paths in table.items():
        for path in paths:
            assert exists(repository, path), f"{concept}: {path}"


def names(change: str) -> list[str]:
    """Return the Python names that a text quotes, without options of commands."""
    return re.findall(r"`([A-Za-z_]+)`", change)


def unknown(repository: Path, paths: list[str], change: str) -> list[str]:
    """Return the names that a text quotes but none of its files contains."""
    found = [repository / source / path.replace("NAME", TASK) for source in SOURCES for path in paths]
    files = [file for one in found for file in ([one] if one.is_file() else one.rglob("*.py"))]
    text = "\n".join(file.read_text() for file in files)
    return [name for name in names(change) if re.search(rf"\b{name}\b", text) is None]


def test_each_change_names_what_stands_in_its_files(repository: Path) -> None:
    text = (repository / "docs/architecture.md").read_text()
    table = concepts(text)
    rows = re.findall(r"^\| (.+?) \| .+ \| \d+\. (.+) \|$", text, re.MULTILINE)
    assert sum(len(names(change)) for _, change in rows) >= 12
    assert {concept: unknown(repository, table[concept], change) for concept, change in rows} == {
        concept: [] for concept, _ in rows
    }


def test_the_recipes_name_what_stands_in_their_files(repository: Path) -> None:
    rows = re.findall(r"^\| (`packages/.+?`) \| (.+) \|$", (repository / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    recipes = [(re.findall(r"`([^`]+)`", files), change) for files, change in rows if "NAME" not in files]
    assert sum(len(names(change)) for _, change in recipes) >= 8
    for paths, change in recipes:
        assert [path for path in paths if not exists(repository, path)] == []
        assert unknown(repository, paths, change) == [], paths


def test_twenty_changes_begin_at_a_concept(repository: Path) -> None:
    assert changes((repository / "docs/architecture.md").read_text()) == list(range(1, 21))
