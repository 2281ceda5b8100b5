"""From a user's file to a task, by its text alone: nothing is run here.

A file is in KernelBench's form (`Model`, `get_inputs`, `get_init_inputs`), or it defines a subclass of `nn.Module`,
`example_inputs()` with the arguments of `forward`, and `init_inputs()` with those of the constructor, if it takes any.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cudal1_data import Task
from cudal1_data.errors import BrokenTaskError
from cudal1_data.suggest import did_you_mean
from cudal1_data.task import parse

from cudal1_agent.errors import OptimizeError

EXAMPLES = ("example_inputs", "get_inputs")
"""Functions that return the arguments of `forward`; the first that a file defines counts."""
ARGUMENTS = ("init_inputs", "get_init_inputs")
"""Functions that return the arguments of the constructor."""
_CONVENTION = (
    "define `def example_inputs(): return [...]` with what forward takes, drawn anew in each call, and "
    "`def init_inputs(): return [...]` if the constructor takes anything"
)


@dataclass(frozen=True)
class Target:
    """A module to be optimised."""

    path: Path
    """The user's file."""
    text: str
    """Its text."""
    name: str
    """The module's class."""
    examples: str
    """Function of the file that returns inputs."""
    arguments: str | None
    """Function of the file that returns the constructor's arguments; None if it takes none."""
    task: Task
    """The module as a task, in KernelBench's form."""


def read_target(what: str) -> Target:
    """Return the module that a user named as `FILE.py` or `FILE.py:Class`.

    Raises:
        OptimizeError: There is no such file or class, or the file does not define example inputs.
        BrokenTaskError: The file is not Python.
    """
    path, name = _divided(what)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise OptimizeError(f"cannot read {path}: {reason}; name a file of Python text") from error
    tree = parse(text, where=str(path))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    chosen = _chosen(path, classes, name)
    examples = next((one for one in EXAMPLES if one in functions), None)
    if examples is None:
        raise OptimizeError(f"{path} does not say what {chosen} is called with; {_CONVENTION}")
    arguments = next((one for one in ARGUMENTS if one in functions), None)
    names = {chosen: "Model", examples: "get_inputs"} | ({arguments: "get_init_inputs"} if arguments else {})
    defined = functions | {node.name for node in classes}
    if taken := sorted(new for old, new in names.items() if old != new and new in defined):
        raise OptimizeError(f"{path} defines {', '.join(taken)} beside {chosen}; give these another name")
    source = renamed(text, names)
    if arguments is None:
        source = f"{source.rstrip()}\n\n\ndef get_init_inputs():\n    return []\n"
    task = Task(id=f"file/{path.stem}", source=source, name=chosen, level=1, origin="file")
    return Target(path, text, chosen, examples, arguments, task)


def renamed(text: str, names: Mapping[str, str]) -> str:
    r"""Return a program with names replaced and all else unchanged, including attributes.

    >>> renamed("class A: ...\\nx = A().A  # A", {"A": "Model"})
    'class Model: ...\\nx = Model().A  # A'
    """
    lines = text.splitlines(keepends=True)
    places: list[tuple[int, int, str]] = []
    before = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and token.string in names and before != ".":
                places.append((token.start[0] - 1, token.start[1], token.string))
            before = token.string
    except tokenize.TokenError as error:  # what `ast` reads and `tokenize` does not
        raise BrokenTaskError(f"not Python: {error}") from error
    for line, column, old in reversed(places):
        row = lines[line]
        lines[line] = row[:column] + names[old] + row[column + len(old) :]
    return "".join(lines)


def _divided(what: str) -> tuple[Path, str | None]:
    head, colon, name = what.rpartition(":")
    if colon and name.isidentifier() and not Path(what).exists():
        return Path(head), name
    return Path(what), None


def _chosen(path: Path, classes: list[ast.ClassDef], name: str | None) -> str:
    """Return the class that a user named, or else `Model` or the only module.

    Raises:
        OptimizeError: There is none, or there are several.
    """
    names = [node.name for node in classes]
    if name is not None:
        if name not in names:
            raise OptimizeError(f"{path} has no class {name!r}; {did_you_mean(name, names)}")
        return name
    modules = [node.name for node in classes if any("Module" in ast.unparse(base) for base in node.bases)]
    if "Model" in modules or len(modules) == 1:
        return "Model" if "Model" in modules else modules[0]
    if not modules:
        raise OptimizeError(f"{path} defines no subclass of nn.Module; {_CONVENTION}")
    raise OptimizeError(f"{path} defines {', '.join(modules)}; name one: {path}:{modules[-1]}")
