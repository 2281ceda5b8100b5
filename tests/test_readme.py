"""The commands and scripts in READMEs and tutorials work and print what the pages show (tests/documents.py)."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import documents
import pytest
from documents import PAGES, READMES, ROOT, commands

OURS = {"cudal1-data", "cudal1-env", "cudal1-agent"}
MAX_WORDS = 700
"""Maximum words of the README, without tables and code."""

QUICK = {ROOT / "packages" / "cudal1-data" / "README.md", ROOT / "docs" / "tutorials" / "exemplar_rule.md"}
"""Pages whose scripts time nothing."""
PLAYED = [path for path in PAGES if documents.script(path) or commands([path], "console run")]
FAST = [path for path in PLAYED if path in (ROOT / "README.md", *QUICK)]
SLOW = [path for path in PLAYED if path not in FAST]


def prose(text: str) -> str:
    """Return the text of a page without code, tables, pictures and addresses."""
    text = documents.FENCE.sub("", text)
    text = re.sub(r"^\|.*\|$|<!--.*?-->|<[^>]+>", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


def test_the_readme_is_short() -> None:
    assert len(prose((ROOT / "README.md").read_text()).split()) <= MAX_WORDS


def test_the_readme_shows_python_and_commands() -> None:
    assert documents.script(ROOT / "README.md")
    assert "uv run cudal1-agent train" in commands(READMES, "console")
    assert "uv run cudal1-env doctor" in commands(READMES, "console run")


@pytest.mark.slow
def test_the_readme_shows_the_first_reward(tmp_path: Path) -> None:
    rewards = [float(documents.play(ROOT / "README.md", tmp_path / "folder").split()[-1])]
    while rewards[-1] <= 1.0 and len(rewards) < 4:  # On a busy machine the interval may contain 1.
        rewards.append(float(documents.play_script(ROOT / "README.md", tmp_path).split()[-1]))
    assert rewards[-1] > 1.0, rewards


def test_the_first_page_shows_what_the_readme_shows() -> None:
    block, *_ = (one for one in documents.blocks(ROOT / "docs" / "start.md") if one.info == "console")
    assert block.text in [one.text for one in documents.blocks(ROOT / "README.md") if one.info == "console run"]


@pytest.mark.parametrize("path", [path for path in FAST if path != ROOT / "README.md"], ids=documents.name)
def test_pages_work(path: Path, tmp_path: Path) -> None:
    documents.play(path, tmp_path / "folder")


@pytest.mark.slow
@pytest.mark.parametrize("path", SLOW, ids=documents.name)
def test_pages_that_judge_work(path: Path, tmp_path: Path) -> None:
    documents.play(path, tmp_path / "folder")


def test_pages_quote_records_as_they_are(result_file: Callable[[str], Path]) -> None:
    quoted = [block for path in PAGES for block in documents.blocks(path) if block.info.startswith("record ")]
    assert len(quoted) >= 2
    for block in quoted:
        lines = [json.loads(line) for line in result_file(block.info.split()[1]).read_text().splitlines()]
        held = {f"{one.get('program', one.get('task'))}: {one.get('message')}" for one in lines}
        missing = set(block.text.splitlines()) - held
        assert not missing, f"{block} quotes what its record does not hold: {missing}"


def test_pages_quote_transcripts_as_they_are(result_file: Callable[[str], Path]) -> None:
    quoted = [block for path in PAGES for block in documents.blocks(path) if block.info.startswith("transcript ")]
    assert quoted
    for block in quoted:
        assert block.text in result_file(block.info.split()[1]).read_text(), block


def test_every_tutorial_is_played() -> None:
    waiting = {ROOT / "docs" / "tutorials" / "gpu.md"}
    assert set(documents.TUTORIALS) - waiting <= set(PLAYED)


@functools.cache
def known_flags(*words: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", documents.run([*words, "--help"])))


@pytest.mark.parametrize("command", commands(PAGES, "console", "console run"))
def test_commands_exist_and_know_their_flags(command: str) -> None:
    words = documents.split(command)
    subcommand = [words[1]] if words[0] in OURS and len(words) > 1 and not words[1].startswith("-") else []
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    if flags or words[0] in OURS:
        assert flags <= known_flags(words[0], *subcommand)


def test_contributing_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    names = re.findall(r"`((?:packages|docs|scripts|tests|configs|benchmarks)/[\w./*-]+)`", text)
    named = [name for name in names if "NAME" not in name]
    assert len(named) > 10
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
    scripts = re.findall(r"^\$ uv run (scripts/\S+)", text, re.MULTILINE)
    assert "scripts/check.py" in scripts
    assert all((ROOT / name).is_file() for name in scripts)
