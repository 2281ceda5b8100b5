"""Extraction of the program from a policy's answer.

An answer is either a bare program or prose with fenced code blocks, as the contrastive prompt requests
(`## Performance Analysis`, `## Algorithm Design`, `## Code`). No code is run or compiled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PYTHON_TAGS = frozenset({"python", "py", "python3"})
"""Words after an opening fence that mean Python."""

CODE_TAGS = PYTHON_TAGS | {"cuda", ""}
"""Words after an opening fence that are accepted under `## Code`."""

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})(.*)")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)")
_DEFINES = re.compile(r"^[ \t]*(?:class[ \t]+ModelNew\b|ModelNew[ \t]*[:=])", re.MULTILINE)
_PROGRAM = re.compile(
    r"^[ \t]*(?:import[ \t]+\w|from[ \t]+[\w.]+[ \t]+import\b|class[ \t]+\w+[ \t]*[:(]"
    r"|(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(|ModelNew[ \t]*[:=])",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced code block of an answer."""

    tag: str
    """First word after the opening fence, in lower case."""
    text: str
    """Text between the fences, without the opening fence's indentation."""
    in_code: bool
    """Whether it is under a heading `Code`."""
    complete: bool
    """Whether it has a closing fence."""

    @property
    def defines(self) -> bool:
        """Whether its text seems to define `ModelNew`."""
        return _DEFINES.search(self.text) is not None


def extract_source(answer: str) -> str | None:
    r"""Return the program in an answer, or None if there is none.

    Order of preference: the last Python, CUDA or untagged block under `## Code`, preferably one that defines
    `ModelNew`; the last Python block that defines `ModelNew`; the last block. A block without a closing fence (a
    truncated answer) counts only if no block is complete.

    The whole answer is the program if there is no block and a line looks like Python, or if
    `ModelNew` is defined outside of all blocks and in none of them (fences in a docstring).
    Characters that UTF-8 cannot encode become `?`.

    Args:
        answer: Any text.

    >>> extract_source("## Code\n```python\nclass ModelNew: ...\n```\nDone.")
    'class ModelNew: ...\n'
    >>> extract_source("import torch\nclass ModelNew(torch.nn.Module): ...")
    'import torch\nclass ModelNew(torch.nn.Module): ...'
    >>> extract_source("I cannot make this any faster.") is None
    True
    """
    text = answer.encode("utf-8", "replace").decode("utf-8")
    blocks, prose = split_blocks(text)
    if not blocks:
        return text if _PROGRAM.search(text) else None
    if _DEFINES.search(prose) and not any(block.defines for block in blocks):
        return text
    blocks = [block for block in blocks if block.complete] or blocks
    under_code = [block for block in blocks if block.in_code and block.tag in CODE_TAGS]
    python = [block for block in blocks if block.tag in PYTHON_TAGS]
    for group in ([b for b in under_code if b.defines], under_code, [b for b in python if b.defines], blocks):
        if group:
            return group[-1].text if group[-1].text.strip() else None
    return None


def split_blocks(text: str) -> tuple[list[Block], str]:
    """Return the fenced code blocks of a Markdown text, in order, and the text outside of them.

    A fence is three or more backquotes or tildes at the start of a line, as in CommonMark, at any
    indentation. A line of at least as many of the same character closes it. A heading of the
    first or second level, or one named `Code`, begins a section.
    """
    blocks: list[Block] = []
    body: list[str] = []
    prose: list[str] = []
    fence = indent = tag = ""
    in_code = False
    for line in text.split("\n"):
        row = line.rstrip()
        if fence:
            stripped = row.lstrip(" \t")
            if len(stripped) >= len(fence) and not stripped.strip(fence[0]):
                blocks.append(Block(tag, _joined(body, indent), in_code, complete=True))
                fence, body = "", []
            else:
                body.append(line)
        elif (match := _FENCE.fullmatch(row)) and not (match[2][0] == "`" and "`" in match[3]):
            indent, fence = match[1], match[2]
            tag = (match[3].split() or [""])[0].lower()
        else:
            prose.append(line)
            if match := _HEADING.fullmatch(row):
                title = match[2].strip(" \t#*:").lower()
                if len(match[1]) <= 2 or title == "code":
                    in_code = title == "code"
    if fence:
        blocks.append(Block(tag, _joined(body, indent), in_code, complete=False))
    return blocks, "\n".join(prose)


def _joined(lines: list[str], indent: str) -> str:
    """Join the lines of a block, without the fence's indentation."""
    return "".join(line.removeprefix(indent) + "\n" for line in lines)
