"""Count the tasks for which templates write kernels, by backend, and the reasons for the others.

    uv run benchmarks/templates.py kernelbench:levels=1+2 'generated?n=160'

Writes one JSON object to standard output. Needs no GPU, because nothing is judged.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping

from cudal1_data import Task, load_suite
from cudal1_data.kernelgen.codegen.programs import Choice, nvrtc_program, triton_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import plan
from cudal1_data.kernelgen.make import variants
from cudal1_data.operators import EXPRESSIONS

KERNELS = ("triton", "cuda-nvrtc")
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[-+]?\d+)?")
SMALL = 32
"""Whole numbers up to this one are not computed from the reference: warps, lanes, axes."""


def unknown_numbers(source: str, reference: str, parameters: Mapping[str, int | str]) -> set[float]:
    """Return the numbers of a program that do not occur in its reference.

    Template parameters, whole numbers up to 32 and the constants of PyTorch's operators and norms count as known.
    """
    known = {float(one) for text in (reference, *EXPRESSIONS.values()) for one in NUMBER.findall(text)}
    known |= {1e-5}  # default epsilon of PyTorch's norms
    known |= {float(one) for one in parameters.values() if isinstance(one, int)}
    found = {float(one) for one in NUMBER.findall(source)}
    return {one for one in found - known if one > SMALL or one != int(one)}


def reason(task: Task) -> str:
    """Return why a task has no kernel, with sizes masked."""
    try:
        reference = read(task.source)
        steps = plan(reference.roots)
        for program in (triton_program, nvrtc_program):
            program(reference, steps, Choice())
    except (UnsuitableError, RecursionError) as error:
        return re.sub(r"\(?\d[\d, ()]*", "# ", str(error))[:160]
    return "no choice of parameters fits"


def coverage(tasks: Iterable[Task]) -> dict[str, object]:
    """Count tasks by the backends of their kernels."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    total = 0
    for task in tasks:
        found = {one.backend for one in variants(task, KERNELS)}
        counts.update(found)
        counts["all"] += found == set(KERNELS)
        if found != set(KERNELS):
            reasons[reason(task)] += 1
        total += 1
    return {"tasks": total, **counts, "reasons": dict(reasons.most_common(12))}


def main() -> None:
    """Count and print."""
    specs = sys.argv[1:] or ["starter", "generated?n=160&seed=0"]
    print(json.dumps({spec: coverage(load_suite(spec, device="cuda")) for spec in specs}, indent=1))


if __name__ == "__main__":
    main()
