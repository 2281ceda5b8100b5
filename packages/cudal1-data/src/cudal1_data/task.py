"""The task model: a reference program in KernelBench's form, with facts about it.

This module neither imports torch nor executes a program: source text is data.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from cudal1_data.errors import BrokenTaskError
from cudal1_data.sizes import with_size

Size = dict[str, int]
"""Values for a task's module-level integer constants, by name: one member of its shape family."""

Device = Literal["cpu", "cuda"]
Split = Literal["train", "validation", "test"]

REQUIRED_NAMES = ("Model", "get_inputs", "get_init_inputs")


class Variant(BaseModel):
    """A program known to be correct for its task; stage 1 learns from these."""

    model_config = ConfigDict(frozen=True)

    name: str
    """File name without its ending, unique within the task."""
    source: str
    """Program text that defines `ModelNew`."""
    techniques: tuple[str, ...] = ()
    """Tags of the techniques that make it fast (`algebra`, `fusion`, `in-place`, `c`, ...)."""
    needs: tuple[str, ...] = ()
    """Build requirements: `compiler` (gcc), `cuda` (nvcc, g++ and ninja), `triton`."""
    devices: tuple[Device, ...] = ("cpu", "cuda")
    """Devices on which it runs."""


class SizeFamily(BaseModel):
    """The sizes of a task on one device."""

    model_config = ConfigDict(frozen=True)

    default: Size = Field(default_factory=dict[str, int])
    """Size for training and reporting."""
    held_out: tuple[Size, ...] = ()
    """Sizes never trained on."""


class Memory(BaseModel):
    """Memory of a task's inputs, state and outputs; a program's intermediate tensors come on top."""

    model_config = ConfigDict(frozen=True)

    inputs_bytes: int = Field(ge=0)
    """Size of the inputs."""
    state_bytes: int = Field(ge=0)
    """Size of parameters and buffers."""
    outputs_bytes: int = Field(ge=0)
    """Size of the outputs."""

    @property
    def total_bytes(self) -> int:
        """Sum of the three."""
        return self.inputs_bytes + self.state_bytes + self.outputs_bytes


class Task(BaseModel):
    """A reference program with its id, level, origin, split, tags and shape family."""

    model_config = ConfigDict(frozen=True)

    id: str
    """`suite/name`, followed by `@N=512,M=64` at other than the default size."""
    source: str
    """Program text that defines `Model`, `get_inputs` and `get_init_inputs`."""
    name: str
    """Human name."""
    level: int = Field(ge=1)
    """KernelBench's difficulty level (1 single operator, 2 fusion, 3 network)."""
    origin: str
    """Source of the task: `starter`, `kernelbench`, `cuda-l1`, `file`."""
    split: Split = "test"
    """Use of the task: training, validation or test."""
    category: str = ""
    """Kind of operation (`matmul`, `reduction`, ...)."""
    tags: tuple[str, ...] = ()
    """Free tags. `random`: the output is not a function of the inputs. `degenerate`: a constant comes close to the
    correct output. `scaled`: the batch is smaller than its author's."""
    memory: Memory | None = None
    """Size of inputs, state and outputs, if known."""
    overlaps: str | None = None
    """Id of the KernelBench task with the same operator graph, if any."""
    sizes: dict[Device, SizeFamily] = Field(default_factory=dict[Device, SizeFamily])
    """The shape family by device; empty if the program has only one size."""
    variants: tuple[Variant, ...] = ()
    """Programs known to be correct."""

    def at(self, size: Mapping[str, int], *, tag: bool = True) -> Task:
        """Return this task with its module-level constants set to `size`.

        Args:
            size: New values by constant name; the source must assign an integer literal to each name at its top level.
            tag: Append the size to the id, merged with its present size.

        Raises:
            BrokenTaskError: A name is not a top-level integer constant of the source.
        """
        return self.model_copy(
            update={
                "source": with_constants(self.source, size, where=self.id),
                "id": with_size(self.id, size) if tag else self.id,
                "memory": None if size else self.memory,
            }
        )

    def on(self, device: Device) -> Task:
        """Return this task at its default size for `device`; unchanged if it declares none."""
        family = self.sizes.get(device)
        return self.at(family.default, tag=False) if family else self

    def held_out(self, device: Device) -> tuple[Task, ...]:
        """Return this task at each of its held-out sizes for `device`."""
        family = self.sizes.get(device)
        return tuple(self.at(size) for size in family.held_out) if family else ()


def with_constants(source: str, size: Mapping[str, int], *, where: str) -> str:
    """Return `source` with top-level integer constants replaced and all else unchanged.

    Args:
        source: Program text.
        size: New values by constant name.
        where: The program's name in an error.

    Raises:
        BrokenTaskError: A name is not a top-level integer constant of the source.
    """
    lines = source.splitlines(keepends=True)
    left = dict(size)
    tree = parse(source, where=where)
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
            continue
        name, value = node.targets[0].id, node.value
        if name in left and isinstance(value, ast.Constant) and isinstance(value.value, int):
            row = lines[value.lineno - 1]
            # ast counts columns in UTF-8 bytes.
            raw = row.encode()
            new = raw[: value.col_offset] + str(left.pop(name)).encode() + raw[value.end_col_offset :]
            lines[value.lineno - 1] = new.decode()
    if left:
        known = ", ".join(f"{name} = {value}" for name, value in integer_constants(tree).items())
        raise BrokenTaskError(
            f"{where} defines no integer constant {', '.join(sorted(left))} at its top level; "
            + (f"its constants are {known}" if known else "it has none: leave the size out")
        )
    return "".join(lines)


def integer_constants(tree: ast.Module) -> dict[str, int]:
    """Return the integers that a program assigns to names at the top level, by name, in order."""
    found: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, int) and not isinstance(value.value, bool):
                found[node.targets[0].id] = value.value
    return found


def parse(source: str, *, where: str) -> ast.Module:
    """Parse a program without running it.

    Raises:
        BrokenTaskError: The text is not Python.
    """
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)  # missing for a NUL byte
        place = "" if line is None else f" in line {line}"
        reason = getattr(error, "msg", None) or error
        raise BrokenTaskError(f"{where}: not Python: syntax error{place}: {reason}") from error
    except (MemoryError, RecursionError) as error:  # from Python's parser, on text nested too deeply
        raise BrokenTaskError(f"{where}: the text is nested too deeply to be parsed as Python") from error


def check_reference(source: str, *, where: str) -> None:
    """Check that a reference program defines the names that KernelBench's form requires.

    Args:
        source: Program text.
        where: File or id to name in the error.

    Raises:
        BrokenTaskError: The text is not Python, or lacks a name; the message lists which.
    """
    defined: set[str] = set()
    for node in parse(source, where=where).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            defined.update(alias.asname or alias.name for alias in node.names)
    missing = [name for name in REQUIRED_NAMES if name not in defined]
    if missing:
        raise BrokenTaskError(f"{where} is no task: it does not define {', '.join(missing)}; add what is missing")
