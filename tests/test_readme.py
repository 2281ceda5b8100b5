"""What the READMEs tell a reader to type works.

A `python` block is executed as it stands. In a `console` block each `$` line must name a command that exists and
flags that its `--help` lists; in a block marked `console run` the commands are executed too.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
READMES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS = {"cudal1-data", "cudal1-env", "cudal1-agent"}


@dataclass(frozen=True)
class Block:
    """One fenced block of a README."""

    path: Path
    line: int
    info: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks(info: str) -> Iterator[Block]:
    for path in READMES:
        text = path.read_text()
        for match in FENCE.finditer(text):
            if match[1].strip() == info:
                yield Block(path, text.count("\n", 0, match.start()) + 1, info, match[2])


def commands(*infos: str) -> list[str]:
    """Every command that follows a `$`, once."""
    lines = [line for info in infos for block in blocks(info) for line in block.text.splitlines()]
    return list(dict.fromkeys(line.removeprefix("$ ") for line in lines if line.startswith("$ ")))


def split(command: str) -> list[str]:
    """Return the words of `uv run COMMAND ...` from COMMAND on."""
    words = shlex.split(command, comments=True)
    assert words[:2] == ["uv", "run"], f"expected a README command to start with `uv run`, got {command!r}"
    return words[2:]


def run(words: list[str], *, timeout_s: float = 240.0) -> str:
    """Run a command of this environment in the repository; return what it printed on standard output."""
    program = shutil.which(words[0], path=str(Path(sys.executable).parent))
    assert program is not None, f"{words[0]} is not installed beside {sys.executable}"
    done = subprocess.run(
        [program, *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{shlex.join(words)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_readme_shows_python_and_commands() -> None:
    assert list(blocks("python"))
    assert "uv run cudal1-agent train" in commands("console")
    assert "uv run pytest" in commands("console")


def execute(block: Block) -> str:
    """Run a Python block in a fresh process outside the repository; return its standard output."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "block.py"
        script.write_text(block.text)
        done = subprocess.run(
            [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=240, check=False
        )
    assert done.returncode == 0, f"{block} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("block", list(blocks("python")), ids=str)
def test_python_blocks_run(block: Block) -> None:
    execute(block)


def test_the_first_program_is_judged() -> None:
    # On a busy machine two trials of a program this fast may disagree, or the interval be wide: then once more.
    found: list[tuple[str, bool]] = []
    for _ in range(2):
        status, reward = execute(next(blocks("python"))).splitlines()[-1].split()
        found.append((status, float(reward) > 1.0))
        if found[-1] == ("CORRECT", True):
            break
        assert status in ("CORRECT", "UNSTABLE")
    assert ("CORRECT", True) in found, found


@pytest.mark.parametrize("command", commands("console", "console run"))
def test_commands_exist_and_know_their_flags(command: str) -> None:
    words = split(command)
    subcommand = [words[1]] if words[0] in OURS and len(words) > 1 and not words[1].startswith("-") else []
    text = run([words[0], *subcommand, "--help"])
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    known = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))
    assert flags <= known


@pytest.mark.parametrize("command", commands("console run"))
def test_marked_commands_run(command: str) -> None:
    words = split(command)
    assert run(words).strip() != ""


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
