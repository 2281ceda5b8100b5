"""Contrastive prompts and their answers: pure functions from text to text.

The prompt has the five parts of the CUDA-L1 paper, in its order: the task, the reference program, previous
implementations with scores, the generation protocol, requirements and restrictions. The answer has three
sections. Of the two styles, `compact` has a few short lines, for a model with a short context that was trained on
nothing else; `full` is for a pretrained language model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cudal1_env.exemplars import Exemplar

from cudal1_agent.data.canonical import canonical
from cudal1_agent.data.plain import plain

Style = Literal["canonical", "compact", "full"]

ANALYSIS = "Performance Analysis"
"""Heading of an answer's first section, as in the paper."""
DESIGN = "Algorithm Design"
"""Heading of the second section, as in the paper."""
CODE = "Code"
"""Heading of the third section, as in the paper."""


@dataclass(frozen=True)
class Answer:
    """The three sections of an answer; a missing section is empty."""

    analysis: str
    """Which previous implementation is faster, and why."""
    design: str
    """What the new program does."""
    code: str
    """The whole section under `## Code`, including fences; `cudal1_env.extract` extracts the program."""

    @property
    def complete(self) -> bool:
        """Whether the answer has all three sections."""
        return bool(self.analysis and self.design and self.code)


COMPACT_TASK = "Compare the previous programs, then write a faster ModelNew."
COMPACT_PROTOCOL = f"## Protocol\nAnswer with ## {ANALYSIS}, ## {DESIGN}, ## {CODE}.\n"
COMPACT_RULES = "## Rules\nSame results, same sizes, nothing kept between runs.\n"

FULL_TASK = """\
You are an expert in making PyTorch programs fast on {device}. You are given a reference program and, where there
are any, previous implementations of it, each with its score: how many times faster than the reference it was
measured to be. Compare them, find out what makes the fast ones fast, and write an implementation that is faster than
all of them.
"""
FULL_PROTOCOL = f"""\
## Protocol
Answer with exactly three sections, under these headings:

## {ANALYSIS}
Which of the previous implementations is faster, and why? Which strategies promise most, and what limits them? Which
techniques has nobody used yet? Where is the largest gain to be had?

## {DESIGN}
What your program will do, step by step.

## {CODE}
One fenced Python block with the complete program. It defines `ModelNew`, whose constructor and `forward` take the
same arguments as those of `Model`. Inline C++, CUDA or Triton source is welcome.
"""
FULL_RULES = """\
## Requirements and restrictions
- The outputs must equal the reference's for every input; otherwise the score is 0.
- Each call must do the whole computation: nothing may be kept from one run to the next, and nothing may be left
  running when `forward` returns.
- Each call writes every element of its outputs, and leaves its inputs unchanged.
- Batch size, dimensions and every other hyper-parameter stay as they are.
- Register every parameter and buffer of `Model` in the constructor of `ModelNew`, with the same names, shapes and
  dtypes; their order does not matter, and further ones are allowed. They are given new values after construction:
  derive fused, transposed or packed copies from them in the first call of `forward`, never before.
"""


def build_prompt(reference: str, exemplars: Sequence[Exemplar], *, style: Style, device: str = "cpu") -> str:
    r"""Return the prompt for a task.

    Args:
        reference: The reference program; `compact` shows it as `plain` writes it, `canonical` as `canonical` does.
        exemplars: Previous implementations, in the order of the prompt.
        style: Style of the prompt.
        device: Device that the programs run on; the `full` style names it.

    >>> prompt = build_prompt("class Model: ...\n", [Exemplar("class ModelNew: ...\n", 1.5)], style="compact")
    >>> "code1 (1.50)" in prompt
    True
    """
    code = _fenced if style == "full" else _compact_code
    shown = "".join(
        f"code{number} ({exemplar.speedup:.2f})\n{code(exemplar.source)}"
        for number, exemplar in enumerate(exemplars, start=1)
    )
    if style != "full":
        previous = f"## Previous\n{shown or 'none' + chr(10)}"
        shortened = code(canonical(reference) if style == "canonical" else plain(reference))
        return f"{COMPACT_TASK}\n## Reference\n{shortened}{previous}{COMPACT_PROTOCOL}{COMPACT_RULES}# Answer\n"
    previous = f"## Previous implementations with scores\n{shown or 'There are none yet.' + chr(10)}"
    task = FULL_TASK.format(device="a CPU" if device == "cpu" else "an NVIDIA GPU")
    return f"{task}\n## Reference\n{code(reference)}\n{previous}\n{FULL_PROTOCOL}\n{FULL_RULES}"


def fitting(
    reference: str,
    exemplars: Sequence[Exemplar],
    *,
    style: Style,
    device: str = "cpu",
    count: Callable[[str], int],
    limit: int,
) -> list[Exemplar]:
    """Return the exemplars that fit into the prompt for a task, dropping the slowest first.

    Args:
        reference: The reference program.
        exemplars: Previous implementations.
        style: Style of the prompt.
        device: Device that the programs run on.
        count: Number of tokens in a text.
        limit: Maximum number of tokens of the prompt.
    """
    kept = list(exemplars)
    while kept and count(build_prompt(reference, kept, style=style, device=device)) > limit:
        kept.remove(min(kept, key=lambda exemplar: exemplar.speedup))
    return kept


def build_answer(analysis: str, design: str, code: str) -> str:
    r"""Return an answer in the form that the prompt asks for.

    >>> parse_answer(build_answer("a", "b", "class ModelNew: ...\n")).design
    'b'
    """
    return f"## {ANALYSIS}\n{analysis}\n## {DESIGN}\n{design}\n## {CODE}\n{_fenced(code)}"


_HEADINGS = re.compile(
    rf"^ {{0,3}}#{{2,6}}[ \t]*\**({ANALYSIS}|{DESIGN}|{CODE})\**[ \t:]*$", re.MULTILINE | re.IGNORECASE
)


def parse_answer(text: str) -> Answer:
    r"""Split an answer into its sections.

    Headings have two to six `#` (a comment in a program has one) and any case. If a heading comes twice, the last
    one counts; text before the first heading belongs to no section.

    >>> parse_answer("## Performance Analysis\nx\n## Algorithm Design\ny\n## Code\nz").complete
    True
    >>> parse_answer("class ModelNew: ...").complete
    False
    """
    marks = list(_HEADINGS.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)] * bool(marks)
    sections = {mark[1].lower(): text[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}
    return Answer(*(sections.get(name.lower(), "") for name in (ANALYSIS, DESIGN, CODE)))


def _fenced(code: str) -> str:
    """Return a program in a Markdown fence that is longer than any fence in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", code)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}python\n{code.rstrip()}\n{fence}\n"


def _compact_code(code: str) -> str:
    """Return a program without a fence, because headings separate the sections in the compact style."""
    return code.rstrip() + "\n"
