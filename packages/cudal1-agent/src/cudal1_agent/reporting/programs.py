"""Programs as HTML: highlighted by pygments, or two side by side with lines matched by difflib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup, escape

from cudal1_agent.reporting.text import short, visible

if TYPE_CHECKING:
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

MAX_LINES = 300
"""Maximum number of lines of a program that are shown."""
BUDGET_BYTES = 9_000_000
"""Maximum size of all programs of a page together; further programs are named and not shown."""
Side = Literal["same", "changed", "gap"]


@dataclass(frozen=True)
class Line:
    """A line of a program on the page."""

    html: Markup
    side: Side = "same"
    """Whether the other program has it too; `gap` is a blank opposite one of the other's lines."""


@dataclass(frozen=True)
class Compared:
    """Two programs, aligned by line."""

    before: list[Line]
    after: list[Line]
    same: int
    """Number of lines that both have."""


@dataclass
class Printer:
    """Converter of programs to HTML, until the page's budget is spent."""

    left: int = BUDGET_BYTES
    """Bytes that may still be written; 0 after the first program that did not fit."""
    omitted: int = field(default=0)
    """Number of programs that did not fit."""

    def program(self, source: str) -> list[Line] | None:
        """Return the lines of a program, None if the page has no room for it."""
        if self.left <= 0:
            self.omitted += 1
            return None
        return self._spend([[Line(html) for html in highlighted(shown_lines(source))]], 1)

    def compared(self, before: str, after: str) -> Compared | None:
        """Return two programs side by side, None if the page has no room for them."""
        if self.left <= 0:
            self.omitted += 2
            return None
        found = compare(shown_lines(before), shown_lines(after))
        return found if self._spend([found.before, found.after], 2) is not None else None

    def _spend(self, programs: list[list[Line]], count: int) -> list[Line] | None:
        size = sum(len(line.html) + 32 for lines in programs for line in lines)
        if size > self.left:
            # Full: no further program is converted to see whether it fits.
            self.left = 0
            self.omitted += count
            return None
        self.left -= size
        return programs[0]


def shown_lines(source: str) -> list[str]:
    """Return the lines of a program that a page shows: limited in number and length, without invisible characters."""
    lines = source.rstrip("\n").split("\n")
    more = len(lines) - MAX_LINES
    shown = [short(visible(line)) for line in lines[:MAX_LINES]]
    return [*shown, f"# ... {more} more lines"] if more > 0 else shown


def compare(before: Sequence[str], after: Sequence[str]) -> Compared:
    """Return two programs side by side, equal lines at equal height."""
    old, new = highlighted(before), highlighted(after)
    left: list[Line] = []
    right: list[Line] = []
    same = 0
    for what, i1, i2, j1, j2 in SequenceMatcher(None, before, after).get_opcodes():
        side: Side = "same" if what == "equal" else "changed"
        same += i2 - i1 if what == "equal" else 0
        for one, other in zip_longest(old[i1:i2], new[j1:j2]):
            left.append(Line(Markup(), "gap") if one is None else Line(one, side))
            right.append(Line(Markup(), "gap") if other is None else Line(other, side))
    return Compared(left, right, same)


def highlighted(lines: Sequence[str]) -> list[Markup]:
    """Return each line of a Python program as HTML, escaped by pygments."""
    from pygments import highlight

    html = str(highlight("\n".join(lines), _lexer(), _formatter())).split("\n")[: len(lines)]
    if len(html) != len(lines):  # a lexer that joins lines would shift all that follow
        return [escape(line) for line in lines]
    return [Markup(line) for line in html]  # pygments has escaped it


@cache
def _lexer() -> PythonLexer:
    from pygments.lexers import PythonLexer

    return PythonLexer(stripnl=False, ensurenl=True)


@cache
def _formatter() -> HtmlFormatter[str]:
    from pygments.formatters import HtmlFormatter

    return HtmlFormatter(nowrap=True)


@cache
def colours() -> str:
    """Return the style sheet of highlighted programs: one rule for each kind of token, light and dark."""
    from pygments.styles import get_style_by_name
    from pygments.token import STANDARD_TYPES

    light, dark = get_style_by_name("default"), get_style_by_name("github-dark")
    rules: list[str] = []
    for token, name in STANDARD_TYPES.items():
        one, other = light.style_for_token(token)["color"], dark.style_for_token(token)["color"]
        if name and one and other:
            rules.append(f"pre .{name}{{color:light-dark(#{one},#{other})}}")
    return "\n".join(rules)
