"""docs/results contains the records that the documents quote, and stays small."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

MAX_BYTES = 4_000_000
MAX_WORK_TREE_BYTES = 12_000_000
MAX_UNCOMPRESSED_BYTES = 110_000


def listed(folder: Path) -> list[str]:
    """Return the files in the table of the folder's README, without those in other folders."""
    rows = re.findall(r"^\| (`[^|]+) \|", (folder / "README.md").read_text(), re.MULTILINE)
    return [name for row in rows if " in the " not in row for name in re.findall(r"`([^`]+)`", row)]


def test_the_table_lists_each_file_once_and_no_other(repository: Path) -> None:
    folder = repository / "docs" / "results"
    files = {path.name for path in folder.iterdir()} - {"README.md"}
    names = listed(folder)
    assert sorted(names) == sorted(files)


def test_large_records_are_compressed_and_the_folder_is_small(repository: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in (repository / "docs" / "results").iterdir()}
    large = [name for name, size in sizes.items() if size > MAX_UNCOMPRESSED_BYTES and not name.endswith(".gz")]
    assert not large, f"compress with `gzip -9n`: {large}"
    assert sum(sizes.values()) <= MAX_BYTES


def test_a_clone_is_small(repository: Path) -> None:
    if shutil.which("git") is None or not (repository / ".git").exists():
        pytest.skip("needs git and a git checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=repository, check=True, capture_output=True, text=True).stdout
    paths = [repository / name for name in names.split("\0") if name]
    assert sum(path.lstat().st_size for path in paths if path.exists()) <= MAX_WORK_TREE_BYTES


def test_each_record_is_json(repository: Path, result_file: Callable[[str], Path]) -> None:
    for path in (repository / "docs" / "results").glob("*.json*"):
        name = path.name.removesuffix(".gz")
        text = result_file(name).read_text()
        for line in text.splitlines() if ".jsonl" in name else [text]:
            json.loads(line)


def test_compressed_records_name_no_file_of_the_machine(repository: Path) -> None:
    for path in (repository / "docs" / "results").glob("*.gz"):
        found = re.findall(r"(?<![\w.*}-])/(?:home|Users|root|work)/\w+", gzip.decompress(path.read_bytes()).decode())
        assert not found, f"{path.name}: {found[:3]}"


def test_documents_name_records_that_exist(repository: Path) -> None:
    for path in [repository / "README.md", *sorted((repository / "docs").rglob("*.md"))]:
        for name in re.findall(r"results/([\w.-]+\.(?:jsonl?|txt)(?:\.gz)?)", path.read_text()):
            assert (repository / "docs" / "results" / name).is_file(), f"{path.name} names {name}"
