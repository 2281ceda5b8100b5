"""Draw the diagram of README and site as SVG, in light and dark: the parts' roles, and timed calls.

uv run scripts/diagram.py            write docs/diagrams/overview-light.svg and overview-dark.svg
uv run scripts/diagram.py --check    write nothing; exit with 1 if either file is stale
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "diagrams"
WIDTH, HEIGHT = 880, 426
"""Size of the drawing in its own units."""

FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Theme:
    """Colours of one drawing."""

    name: str
    text: str
    faint: str
    box: str
    judge: str
    worker: str
    line: str


THEMES = (
    Theme("light", "#1f2328", "#57606a", "#f6f8fa", "#cfe3ff", "#ffe2bd", "#57606a"),
    Theme("dark", "#e6edf3", "#9da7b3", "#161b22", "#1d3d66", "#5a3c12", "#9da7b3"),
)


def box(x: float, y: float, width: float, height: float, fill: str, line: str, *, dashed: bool = False) -> str:
    """Return a rounded rectangle."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{line}" '
        f'stroke-width="1.2"{dash}/>'
    )


def words(
    x: float, y: float, text: str, fill: str, *, size: int = 13, anchor: str = "middle", bold: bool = False
) -> str:
    """Return one line of text."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>{escape(text)}</text>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, line: str) -> str:
    """Return a line with a head at its end."""
    return f'<path d="M{x1} {y1} L{x2} {y2}" stroke="{line}" stroke-width="1.5" marker-end="url(#head)"/>'


def parts(theme: Theme) -> list[str]:
    """Return the upper half: policy, judge, sandbox, and the data between them."""
    drawn: list[str] = []
    for x, fill, title, lines in (
        (16, theme.box, "Policy", ("a language model or you;", "writes ModelNew for a", "reference program")),
        (
            340,
            theme.judge,
            "Judge",
            ("keeps the clock, secret", "inputs and float64 answers;", "never runs the program"),
        ),
        (664, theme.worker, "Sandbox", ("a fresh process runs the", "program: no network, no", "clock, no reference")),
    ):
        drawn.append(box(x, 34, 200, 128, fill, theme.line, dashed=title == "Sandbox"))
        drawn.append(words(x + 100, 66, title, theme.text, size=17, bold=True))
        drawn += [words(x + 100, 94 + 20 * i, text, theme.text) for i, text in enumerate(lines)]
    for start, there, back in (
        (216, ("program",), ("reward: the", "measured speedup")),
        (540, ("inputs of one call",), ("secret sample", "of its outputs")),
    ):
        middle = start + 62
        drawn.append(words(middle, 62, there[0], theme.faint))
        drawn.append(arrow(start + 6, 72, start + 118, 72, theme.line))
        drawn.append(arrow(start + 118, 116, start + 6, 116, theme.line))
        drawn += [words(middle, 134 + 16 * i, text, theme.faint, size=12) for i, text in enumerate(back)]
    return drawn


def timeline(theme: Theme) -> list[str]:
    """Return the lower half: calls of a chain, each released after the outputs of the one before were read."""
    top = 206
    drawn = [words(16, top, "Timed calls on a GPU", theme.text, size=15, anchor="start", bold=True)]
    for y, name in ((top + 42, "judge"), (top + 100, "program"), (top + 154, "clock")):
        drawn.append(words(16, y, name, theme.text, anchor="start"))
        drawn.append(f'<path d="M84 {y - 4} H864" stroke="{theme.line}" stroke-width="0.6" stroke-dasharray="2 4"/>')
    # Offsets from the start of a call: release, the program's work, the read.
    drawn.append(box(92, top + 22, 70, 32, theme.box, theme.line))
    drawn.append(words(127, top + 42, "untimed", theme.text, size=12))
    for begin in (178, 512):
        for x, width, y, fill, text in (
            (begin, 92, top + 22, theme.judge, "release key"),
            (begin + 92, 128, top + 80, theme.worker, "one call"),
            (begin + 220, 104, top + 22, theme.judge, "read sample"),
        ):
            drawn.append(box(x, y, width, 32, fill, theme.line))
            drawn.append(words(x + width / 2, y + 20, text, theme.text, size=12))
    drawn.append(box(178, top + 142, 658, 16, theme.faint, theme.line))
    for x, text, anchor in ((178, "starts with the release", "start"), (836, "stops after the last read", "end")):
        drawn.append(words(x, top + 176, text, theme.faint, size=12, anchor=anchor))
    note = top + 212
    drawn.append(
        f'<path d="M507 {top + 14} V{note - 20}" stroke="{theme.line}" stroke-width="1" stroke-dasharray="4 3"/>'
    )
    drawn.append(
        words(
            507,
            note,
            "Before this moment the next inputs are masked: their key does not exist in the sandbox.",
            theme.text,
        )
    )
    drawn.append(words(507, note + 20, "So no call can be skipped, shared, or done before its clock runs.", theme.text))
    return drawn


def drawing(theme: Theme) -> str:
    """Return the whole drawing as the text of an SVG file."""
    title = "A policy sends a program to the judge; the judge times it in a sandbox; the reward is the measured speedup"
    head = (
        f'<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{theme.line}"/></marker></defs>'
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 20 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="{FONT}" fill="none">',
        f"<title>{title}</title>",
        head,
        *parts(theme),
        *timeline(theme),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """Return the text of each file by its path."""
    return {FOLDER / f"overview-{theme.name}.svg": drawing(theme) for theme in THEMES}


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="Draw the diagram of README and site.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    check = parser.parse_args().check
    stale = [path for path, text in files().items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.name} is stale: run `uv run scripts/diagram.py`", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files()[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
