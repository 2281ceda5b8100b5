"""The parts of a program that patterns search: Python, CUDA C++ and Triton kernels. Nothing is executed."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

# Texts are untrusted: no pattern may scan from every position to the end.
COMMENTS = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
CUDA_TEXT = re.compile(r"__global__|__device__|cuda_runtime\.h|cublas|at::cuda|CUDAContext")
C_TEXT = re.compile(r"#include|extern \"C\"|torch::Tensor|\b(?:void|float|double|int)\s+\w+\s*\([^)]{0,2000}\)\s*\{")
CPP_BUILDERS = ("load_inline", "CUDAExtension", "CppExtension")
RUNTIME_BUILDERS = (
    "_compile_kernel",
    "RawKernel",
    "RawModule",
    "SourceModule",
    "nvrtcCompileProgram",
    "compile_module",
    "ElementwiseKernel",
    "ReductionKernel",
)
C_BUILDERS = ("ctypes.CDLL", "CDLL", "cffi.FFI")


@dataclass(frozen=True)
class Parts:
    """The parts of one program."""

    tree: ast.Module
    """Its Python."""
    reference: ast.Module | None = None
    """The Python of its reference, if known."""

    @cached_property
    def _flat(self) -> tuple[list[ast.AST], frozenset[str]]:
        return flat(self.tree)

    @property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the Python."""
        return self._flat[0]

    @property
    def words(self) -> frozenset[str]:
        """Names and one-line strings of the Python, except in f-strings."""
        return self._flat[1]

    @cached_property
    def said(self) -> str:
        """The words, one per line."""
        return "\n".join(self.words)

    @cached_property
    def calls(self) -> frozenset[str]:
        """Dotted names of calls and decorators: `torch.compile`, `F.relu`, `self.graph.replay`."""
        return frozenset(_names(self.nodes))

    def may_say(self, *words: str) -> bool:
        """Return whether a name or one-line string contains one of the words: a cheap test before a search."""
        return any(word in self.said for word in words)

    @cached_property
    def python(self) -> str:
        """The Python without comments, f-strings and multi-line strings (kernels, documentation)."""
        return ast.unparse(self._stripped)

    @cached_property
    def multiplies(self) -> bool:
        """Whether the Python uses the operator `@`."""
        return any(isinstance(node, ast.MatMult) for node in self.nodes)

    @cached_property
    def _stripped(self) -> ast.Module:
        return _copied(self.tree, frozenset())

    @cached_property
    def outside(self) -> ast.Module:
        """The Python that runs before the calls: without `forward`, `backward` and functions that only they call."""
        called = self.reached("forward", "backward") - self.reached("__init__")
        return _copied(self._stripped, frozenset({*called, "forward", "backward"}))

    @cached_property
    def outside_forward(self) -> str:
        """`outside` as text."""
        return ast.unparse(self.outside)

    def reached(self, *starts: str) -> set[str]:
        """Return the functions that functions of these names call, directly or indirectly."""
        functions: dict[str, list[ast.FunctionDef]] = {}
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef):
                functions.setdefault(node.name, []).append(node)
        found: set[str] = set()
        todo = list(starts)
        while todo:
            for function in functions.get(todo.pop(), []):
                names = {name.rpartition(".")[2] for name in names_called(function)}
                new = {name for name in names if name in functions} - found
                found |= new
                todo.extend(new)
        return found

    @cached_property
    def cuda(self) -> str:
        """The CUDA C++ in strings, without comments; empty if the program calls nothing that builds it."""
        return "\n".join(text for text in self.texts if CUDA_TEXT.search(text)) if self.builds else ""

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Strings that look like C or C++, without comments."""
        found = (_text(node) for node in self.nodes if isinstance(node, ast.Constant | ast.JoinedStr))
        return tuple(COMMENTS.sub("", text) for text in found if C_TEXT.search(text) or CUDA_TEXT.search(text))

    @cached_property
    def builds(self) -> bool:
        """Whether the program compiles text to machine code."""
        return self.loads_extensions or self.compiles_at_run_time or self.has_call(*C_BUILDERS)

    @cached_property
    def loads_extensions(self) -> bool:
        """Whether the program calls torch's extension loader."""
        return self.has_call(*CPP_BUILDERS) or (
            self.may_say("cpp_extension") and self.has_call("load") and "cpp_extension" in self.python
        )

    @cached_property
    def compiles_at_run_time(self) -> bool:
        """Whether the program calls NVRTC, through any library."""
        return self.has_call(*RUNTIME_BUILDERS) or (self.may_say("core") and "cuda.core" in self.python)

    @cached_property
    def triton(self) -> str:
        """The Triton kernels."""
        if not self.may_say("jit"):
            return ""
        found: list[str] = []
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef):
                decorators = map(ast.unparse, node.decorator_list)
                if any("jit" in text and "torch" not in text for text in decorators):
                    found.append(ast.unparse(node))
        return "\n".join(text for text in found if re.search(r"\btl\.|program_id", text))

    @cached_property
    def reference_operations(self) -> int:
        """Number of operations (calls and arithmetic) in the reference's forward; 0 if unknown."""
        return 0 if self.reference is None else _operations(self.reference)

    def has_call(self, *ends: str) -> bool:
        """Return whether the program calls a dotted name that is or ends in one of these."""
        return not self._ends.isdisjoint(ends)

    @cached_property
    def _ends(self) -> frozenset[str]:
        """All dotted suffixes of the called names."""
        return frozenset(
            name[place:]
            for name in self.calls
            for place in (0, *(at + 1 for at, character in enumerate(name) if character == "."))
        )


@functools.lru_cache(maxsize=16)
def _operations(reference: ast.Module) -> int:
    return sum(
        isinstance(node, ast.BinOp) or (isinstance(node, ast.Call) and not _is_shape(node))
        for forward in _forwards(reference, "Model")
        for node in ast.walk(forward)
    )


def flat(tree: ast.AST) -> tuple[list[ast.AST], frozenset[str]]:
    """Return all nodes of a tree, and its names and one-line strings.

    Load and store contexts are left out. Nodes in f-strings come last, and their words are left out.
    """
    words: set[str] = set()
    found, behind = [tree], list[ast.AST]()
    for node in found:  # grows during the loop
        if isinstance(node, ast.JoinedStr):
            behind += node.values
            continue
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, str):
                words.add(value)
            elif isinstance(value, ast.AST):
                if name != "ctx":
                    found.append(value)
            elif isinstance(value, list):
                for one in cast("list[object]", value):
                    if isinstance(one, ast.AST):
                        found.append(one)
                    elif isinstance(one, str):
                        words.add(one)
    for node in behind:
        found += ast.walk(node)
    return found, frozenset(word for word in words if "\n" not in word)


def names_called(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names of calls and decorators."""
    return _names(flat(tree)[0])


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Call):
            yield _dotted(node.func) or ast.unparse(node.func)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from (ast.unparse(one) for one in node.decorator_list if not isinstance(one, ast.Call))


def _dotted(node: ast.expr) -> str:
    """Return a dotted name, as from `ast.unparse`; empty for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return inner and f"{inner}.{node.attr}"
    return ""


def _forwards(tree: ast.Module, name: str) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "forward")


def _is_shape(call: ast.Call) -> bool:
    last = ast.unparse(call.func).rpartition(".")[2]
    return last in ("size", "view", "reshape", "unsqueeze", "squeeze", "dim", "flatten", "contiguous", "expand", "len")


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "0" for part in node.values)
        return "".join(str(part) for part in parts)
    return node.value if isinstance(node.value, str) else ""


Tree = TypeVar("Tree", bound=ast.AST)


def _copied(node: Tree, names: frozenset[str]) -> Tree:
    """Return a copy without multi-line strings (kernels, documentation), f-strings and the named functions."""
    copy = type(node)()
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            parts = cast("list[object]", value)
            value = [_kept(one, names) if isinstance(one, ast.AST) else one for one in parts]
        elif isinstance(value, ast.AST):
            value = _kept(value, names)
        setattr(copy, name, value)
    return ast.copy_location(copy, node) if isinstance(node, ast.stmt) else copy


def _kept(node: ast.AST, names: frozenset[str]) -> ast.AST:
    if isinstance(node, ast.Constant | ast.Name | ast.expr_context):
        return ast.Constant("") if _is_long(node) else node
    if isinstance(node, ast.JoinedStr):
        return ast.Constant("")
    if isinstance(node, ast.FunctionDef) and node.name in names:
        return ast.Pass()
    return _copied(node, names)


def _is_long(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value
