"""Tasks at a smaller batch, for a GPU with less memory. The task's text changes, and its id says so.

The batch is a constant at the top level of the reference: one with a batch's name, else the leading dimension of the
inputs if only `get_inputs` reads it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from cudal1_data.errors import BrokenTaskError, DataError
from cudal1_data.progress import paced
from cudal1_data.sizes import unsized
from cudal1_data.suite import Broken, Suite
from cudal1_data.task import Memory, Task, integer_constants, parse
from cudal1_data.tracing.process import Tracer

BATCH_NAMES = ("batch_size", "batch", "bs", "b", "n_batch", "num_samples")
"""Lower-case names of a batch constant, the surest first."""
SCALED = "scaled"
"""Tag of a task at a smaller batch."""


def scaled(task: Task, divisor: int) -> Task:
    """Return a task with its batch divided.

    The id has the new size (`kernelbench/level1/12@M=1024`), the tags `scaled`; records keep the id and the whole
    text. The smallest batch is 1. The scaled task's memory is unknown.

    Args:
        task: The task.
        divisor: Divisor of the batch, at least 1; 1 changes nothing.

    Raises:
        BrokenTaskError: No batch can be found, or it is 1 already.
        DataError: The divisor is less than 1.
    """
    if divisor < 1:
        raise DataError(f"the scale {divisor} is less than 1 (it divides the batch); 1 leaves tasks unchanged")
    if divisor == 1:
        return task
    name, value = batch_constant(task)
    if value <= 1:
        raise BrokenTaskError(f"{task.id}: no batch to divide: its {name} is {value} already")
    result = task.at({name: max(1, value // divisor)})
    return result.model_copy(update={"tags": tuple(dict.fromkeys((*task.tags, SCALED)))})


def fitted(task: Task, memory_bytes: int, tracer: Tracer) -> Task:
    """Return a task at the largest batch (divided by a power of two) whose tensors fit into `memory_bytes`.

    Inputs, state and outputs are counted; intermediate tensors are not, so leave memory for them.

    Args:
        task: The task.
        memory_bytes: Limit for its tensors.
        tracer: Measures memory that no note has; it executes the reference in a separate process.

    Raises:
        BrokenTaskError: The task cannot be traced, has no batch, or does not fit at a batch of 1.
        DataError: torch is not installed.
    """
    smaller, divisor = task, 1
    while True:
        needed = memory_of(smaller, tracer).total_bytes
        if needed <= memory_bytes:
            return smaller
        divisor *= 2
        try:
            name, value = batch_constant(task)
        except BrokenTaskError as error:
            raise BrokenTaskError(f"{error} (its tensors take {_gibibytes(needed)})") from error
        if divisor >= 2 * value:
            raise BrokenTaskError(
                f"{task.id}: the tensors take {_gibibytes(needed)} even with {name} = 1, more than "
                f"{_gibibytes(memory_bytes)}; take a larger GPU or leave the task out"
            )
        smaller = scaled(task, divisor)


def memory_of(task: Task, tracer: Tracer) -> Memory:
    """Return the memory of a task's tensors, from its note or by tracing it.

    Raises:
        BrokenTaskError: The task cannot be traced.
        DataError: torch is not installed.
    """
    if task.memory is not None:
        return task.memory
    found = tracer.trace(task, behaviour=False)
    if found.memory is None:
        raise BrokenTaskError(f"{task.id}: the reference cannot be traced: {found.error}")
    return found.memory


def scaled_suite(suite: Suite, *, scale: int = 1, memory_bytes: int | None = None) -> Suite:
    """Return a suite at smaller batches; tasks that cannot be made smaller go to `broken`.

    Scaled tasks keep their published programs but not their published speedups, which hold for the original size.

    Args:
        suite: The suite.
        scale: Divisor of every batch; see `scaled`.
        memory_bytes: Limit for each task's tensors; see `fitted`.
    """
    tasks: list[Task] = []
    broken = list(suite.broken)
    programs: dict[str, Mapping[str, str]] = {}
    scores: dict[str, Mapping[str, float]] = {}
    with Tracer() as tracer:
        for task in paced(suite, len(suite), f"tasks of {suite.name} made to fit"):
            try:
                smaller = scaled(task, scale)
                smaller = smaller if memory_bytes is None else fitted(smaller, memory_bytes, tracer)
            except BrokenTaskError as error:
                broken.append(Broken(Path(suite.name), error, task.id))
                continue
            tasks.append(smaller)
            if task.id in suite.programs:
                programs[smaller.id] = suite.programs[task.id]
            if smaller.source == task.source and task.id in suite.scores:
                scores[smaller.id] = suite.scores[task.id]
    return Suite(suite.name, tasks, broken=broken, programs=programs, scores=scores)


def batch_constant(task: Task) -> tuple[str, int]:
    """Return name and value of a task's batch constant.

    Raises:
        BrokenTaskError: `get_inputs` reads no constant named as a batch, and no leading one that it alone reads.
    """
    tree = parse(task.source, where=task.id)
    constants = integer_constants(tree)
    inputs = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "get_inputs"), None)
    if inputs is None:
        raise BrokenTaskError(f"{task.id}: the task defines no get_inputs")
    named = sorted(
        (name for name in _names_read(inputs) if name in constants and name.lower() in BATCH_NAMES),
        key=lambda name: BATCH_NAMES.index(name.lower()),
    )
    leading = [name for name in _leading_names(inputs) if name in constants]
    elsewhere = {name for part in tree.body if part is not inputs for name in _names_read(part)}
    usable = [*named, *(name for name in leading if name not in elsewhere)]
    if usable:
        return usable[0], constants[usable[0]]
    reason = f"{', '.join(leading)} leads, and the model knows it too" if leading else "no such constant leads a tensor"
    raise BrokenTaskError(
        f"{task.id}: no batch size can shrink (a top-level integer that leads the inputs of get_inputs): {reason}; "
        f"set a size by hand ({unsized(task.id)}@NAME=VALUE), or leave the task out"
    )


def _leading_names(inputs: ast.FunctionDef) -> list[str]:
    """Return the names of tensors' leading sizes, in order, each once."""
    found: dict[str, None] = {}
    for node in ast.walk(inputs):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        sizes = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "size")]
        if node.func.attr == "randint":  # bounds come before the sizes
            sizes = [given for given in sizes if isinstance(given, ast.Tuple | ast.List)]
        if sizes:
            shape = sizes[0]
            first = shape.elts[0] if isinstance(shape, ast.Tuple | ast.List) and shape.elts else shape
            if isinstance(first, ast.Name):
                found.setdefault(first.id)
    return list(found)


def _names_read(part: ast.AST) -> list[str]:
    """Return the names that part of a program reads, in order."""
    return [node.id for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]


def _gibibytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
