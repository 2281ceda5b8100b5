"""READMEs and tutorials as programs: runs what a page tells a reader to type, in a new folder.

| block | what happens |
| --- | --- |
| `python title="NAME"` | the text becomes the file NAME |
| `python` | part of the page's script, which runs as one process once all files are there |
| `text` | what the script prints; numbers may differ |
| `console` | each `$` line names a command that exists, with flags that its `--help` lists |
| `record NAME` | lines from the record docs/results/NAME: task or program, and message |
| `transcript NAME` | a part of the record docs/results/NAME |
| `console run` | the commands also run, after the script; other lines are beginnings of printed ones |
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READMES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [*READMES, ROOT / "docs" / "start.md", *TUTORIALS]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'python title="([^"]+)"')
NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?")
TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    path: Path
    line: int
    info: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def name(path: Path) -> str:
    """Name a page in a report of tests."""
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    text = path.read_text()
    return [
        Block(path, text.count("\n", 0, match.start()) + 1, match[1].strip(), match[2])
        for match in FENCE.finditer(text)
    ]


def script(path: Path) -> str:
    """Return the page's script."""
    return "\n".join(block.text for block in blocks(path) if block.info == "python")


def commands(paths: Iterable[Path], *infos: str) -> list[str]:
    """Return every command that follows a `$`, once."""
    lines = [
        line for path in paths for block in blocks(path) if block.info in infos for line in block.text.splitlines()
    ]
    return list(dict.fromkeys(line.removeprefix("$ ") for line in lines if line.startswith("$ ")))


def split(command: str) -> list[str]:
    """Return the words of `uv run [--extra NAME] COMMAND ...` from COMMAND on."""
    words = shlex.split(command, comments=True)
    assert words[:2] == ["uv", "run"], f"a command of a page starts with `uv run`, not {command!r}"
    return words[4:] if words[2] == "--extra" else words[2:]


def run(words: list[str], folder: Path = ROOT) -> str:
    """Run a command of this environment; return its standard output."""
    program = shutil.which(words[0], path=str(Path(sys.executable).parent))
    assert program is not None, f"{words[0]} is not installed beside {sys.executable}"
    done = subprocess.run(
        [program, *words[1:]], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{shlex.join(words)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def masked(text: str) -> str:
    """Return text with every number masked.

    >>> masked("CORRECT 11.5 in 1e-3 s")
    'CORRECT # in # s'
    """
    return NUMBER.sub("#", text).rstrip()


def play(path: Path, folder: Path) -> str:
    """Run a page's script and commands in a new folder with the checkout's `examples` and `configs`.

    Returns:
        The output of the page's script.

    Raises:
        AssertionError: A command failed, or its output differs from the page.
    """
    folder.mkdir(parents=True)
    for shared in ("examples", "configs"):
        (folder / shared).symlink_to(ROOT / shared)
    found = blocks(path)
    for block in found:
        if title := TITLE.fullmatch(block.info):
            (folder / title[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / title[1]).write_text(block.text)
    printed = play_script(path, folder)
    for block in found:
        if block.info == "console run":
            play_commands(block, folder)
    return printed


def play_script(path: Path, folder: Path) -> str:
    """Run a page's script; check its output against the page and return it."""
    if not (code := script(path)):
        return ""
    (folder / "page.py").write_text(code)
    printed = run(["python", "page.py"], folder)
    if shown := "".join(block.text for block in blocks(path) if block.info == "text"):
        assert masked(printed) == masked(shown), f"{path.name} shows\n{shown}\nand its script printed\n{printed}"
    return printed


def play_commands(block: Block, folder: Path) -> None:
    """Run the commands of a block; each shown line is the beginning of a printed one, up to its first bracket."""
    for command, shown in commands_with_output(block):
        lines = [masked(line) for line in run(split(command), folder).splitlines()]
        assert lines, f"{block}: `{command}` printed nothing"
        for line in shown:
            beginning = masked(line.split(" (")[0].removesuffix("..."))
            assert any(one.startswith(beginning) for one in lines), f"{block}: {line!r} is not among {lines[:40]}"


def commands_with_output(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a console block with the lines shown below it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, [line for line in shown if line.strip() not in ("", "...")]
