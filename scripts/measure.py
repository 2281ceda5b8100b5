"""Print the size of the source: `uv run scripts/measure.py`.

By package: files, lines, lines of code (without blanks, comments and docstrings), and the longest function. By room (a
package's folder, or its modules outside folders): files, lines, and how many of its files import another room.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("cudal1_data", "cudal1_env", "cudal1_worker", "cudal1_agent")
PROGRAMS = "starter"
"""The bundled tasks and their variants: data, not source."""
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Module:
    """One source file."""

    package: str
    room: str
    """Folder below the package; empty for a file outside folders."""
    lines: int
    code: int
    longest: tuple[int, str]
    """Lines of the longest function, and its name."""
    imports: frozenset[str]
    """Rooms that it imports, as `package.room`."""


def main() -> None:
    """Measure every module and print two tables."""
    modules = [module for package in PACKAGES for module in modules_of(package)]
    print(f"{'package':16} {'files':>6} {'lines':>7} {'code':>7}  longest function")
    for package in PACKAGES:
        own = [one for one in modules if one.package == package]
        count, name = max(one.longest for one in own)
        print(f"{package:16} {len(own):6} {_sum(own, 'lines'):7} {_sum(own, 'code'):7}  {name} ({count} lines)")
    print(f"\n{'room':40} {'files':>6} {'lines':>7}  imports")
    by_room = defaultdict[tuple[str, str], list[Module]](list)
    for one in modules:
        by_room[one.package, one.room].append(one)
    for (package, room), own in sorted(by_room.items()):
        name = f"{package}.{room}" if room else package
        imported = Counter(target for one in own for target in one.imports if target != name)
        text = ", ".join(f"{target} ({count})" for target, count in sorted(imported.items()))
        print(f"{name:40} {len(own):6} {_sum(own, 'lines'):7}  {text}")


def modules_of(package: str) -> list[Module]:
    """Return the modules of a package, without its bundled programs."""
    (folder,) = ROOT.glob(f"packages/*/src/{package}")
    paths = [path for path in sorted(folder.rglob("*.py")) if PROGRAMS not in path.relative_to(folder).parts]
    return [_module(package, folder, path) for path in paths]


def _module(package: str, folder: Path, path: Path) -> Module:
    text = path.read_text()
    tree = ast.parse(text)
    parts = path.relative_to(folder).parts
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    where = path.relative_to(folder).as_posix()
    lengths = [((node.end_lineno or 0) - node.lineno + 1, f"{where}:{node.name}") for node in functions]
    imports = frozenset(filter(None, map(_room_of, _imported(tree))))
    return Module(
        package,
        parts[0] if len(parts) > 1 else "",
        len(text.splitlines()),
        _code_lines(text, tree),
        max(lengths, default=(0, "")),
        imports,
    )


def _code_lines(text: str, tree: ast.Module) -> int:
    """Count lines of code: no blank lines, comments or docstrings."""
    strings = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    alone = {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    held = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    return len(held - alone)


def _imported(tree: ast.Module) -> list[str]:
    """Return the full names of a module's imports."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def _room_of(name: str) -> str | None:
    """Return the room of a module in `PACKAGES`; None for other modules."""
    package, _, rest = name.partition(".")
    if package not in PACKAGES:
        return None
    (folder,) = ROOT.glob(f"packages/*/src/{package}")
    first = rest.partition(".")[0]
    return f"{package}.{first}" if first and (folder / first).is_dir() else package


def _sum(modules: list[Module], field: str) -> int:
    return sum(getattr(one, field) for one in modules)


if __name__ == "__main__":
    main()
