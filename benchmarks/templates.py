"""Count the tasks for which templates write kernels, by backend, and the reasons for the others.

    uv run benchmarks/templates.py kernelbench:levels=1+2 'generated?n=160'

Also gives by family how many kernels a program has, and how many bytes its kernels and calls into PyTorch read and
write, over those of the reference's inputs, parameters and outputs: 1.0 for one kernel that reads and writes all once.

Writes one JSON object to standard output. Needs no GPU, because nothing is judged.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping

from cudal1_data import Task, load_suite
from cudal1_data.kernelgen.codegen.programs import Choice, nvrtc_program, triton_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import Kernel, LoopStep, plan
from cudal1_data.kernelgen.ir import Node, Reference, walk
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


ITEM_BYTES = {"float16": 2, "bfloat16": 2, "bool": 1, "int64": 8}
VIEW = re.compile(r"\{0\}(\[|\.(reshape|view|unsqueeze|squeeze|flatten|contiguous\(\)\[|expand|transpose|permute))")


def traffic(reference: Reference) -> tuple[int, float] | None:
    """Return the number of kernels, and bytes moved over the least; None for a reference with a loop."""

    def size_bytes(*nodes: Node) -> int:
        return sum(int(node.size) * ITEM_BYTES.get(node.dtype, 4) for node in nodes)

    kernels = moved = 0
    for step in plan(reference.roots):
        if isinstance(step, LoopStep):
            return None
        if isinstance(step, Kernel):
            kernels += 1
            moved += size_bytes(*step.leaves, *step.outputs)
        elif not (step.strides or VIEW.match(step.text)):
            moved += size_bytes(step, *step.operands)
    given = [node for node in walk(*reference.roots) if node.kind in ("input", "parameter")]
    return kernels, moved / size_bytes(*given, *reference.roots)


def traffic_by_family(tasks: Iterable[Task]) -> dict[str, dict[str, float]]:
    """Return means over the tasks of each family that templates read."""
    families: dict[str, list[tuple[int, float]]] = {}
    for task in tasks:
        try:
            found = traffic(read(task.source))
        except (UnsuitableError, RecursionError):
            continue
        if found is not None:
            families.setdefault(task.category, []).append(found)
    return {
        name: {
            "tasks": len(found),
            "kernels": round(statistics.mean(kernels for kernels, _ in found), 2),
            "moved_over_least": round(statistics.mean(ratio for _, ratio in found), 2),
        }
        for name, found in sorted(families.items())
    }


def main() -> None:
    """Count and print."""
    specs = sys.argv[1:] or ["starter", "generated?n=160&seed=0"]
    suites = {spec: list(load_suite(spec, device="cuda")) for spec in specs}
    found = {spec: coverage(tasks) | {"traffic": traffic_by_family(tasks)} for spec, tasks in suites.items()}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
