"""Imports a program as a module, and describes what it raises."""

from __future__ import annotations

import os
import sys
import traceback
import types
from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch

from cudal1_worker import protocol as wire

MODULE_NAME = "candidate"
_ERROR_CHARS = 4000


class Failure(Exception):
    """A phase failed for a known reason (`kind`)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def execute(source: str, wanted: str) -> types.ModuleType:
    """Execute a program as a module from a file, so that `inspect.getsource` and Triton work.

    Raises:
        Failure: Of kind `syntax` or `no_code`; the program's own exceptions pass through.
    """
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"{MODULE_NAME}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    try:
        code = compile(source, path, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Failure("syntax", f"{type(error).__name__}: {error}") from error
    module = types.ModuleType(MODULE_NAME)
    module.__file__ = path
    sys.modules[MODULE_NAME] = module
    exec(code, module.__dict__)
    if wanted not in module.__dict__:
        raise Failure("no_code", f"the program defines no `{wanted}`")
    return module


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error reports too little memory."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or wire.says_no_memory(str(error))


class Attempt(AbstractContextManager[None]):
    """A block that may fail, for example where a matrix has no factorisation: only a lack of memory is raised."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: types.TracebackType | None
    ) -> bool:
        return isinstance(error, Exception) and not lacks_memory(error)


def describe_error(error: BaseException) -> wire.Message:
    """Return the message that reports an exception."""
    if isinstance(error, Failure):
        return {"error": error.kind, "text": str(error)[:_ERROR_CHARS]}
    line = _last_line(traceback.walk_tb(error.__traceback__))
    where = f" (line {line})" if line is not None else ""
    return {
        "error": "memory" if lacks_memory(error) else "raised",
        "type": type(error).__name__,
        "line": line,
        "text": f"{type(error).__name__}: {error}"[:_ERROR_CHARS] + where,
    }


def current_line() -> int | None:
    """Return the line of the program that is being executed; None outside of it, and in compiled code."""
    return _last_line(reversed([*traceback.walk_stack(None)]))


def _last_line(frames: Iterable[tuple[types.FrameType, int]]) -> int | None:
    lines = [line for frame, line in frames if frame.f_code.co_filename.endswith(f"{MODULE_NAME}.py")]
    return lines[-1] if lines else None
