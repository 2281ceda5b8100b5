"""Faults of programs, as data, and how much of a program's own text their messages may show."""

from __future__ import annotations

import builtins
import signal
from typing import Any

from cudal1_worker import protocol as wire

from cudal1_env.judge.workers.worker import Dead
from cudal1_env.records import Status

_MAX_CHARS = 2000
_MAX_LINE = 10_000
"""Exclusive bound of line numbers shown: the worker chooses the number, and could encode a secret in it."""
_KNOWN = {name for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, BaseException)} | {
    "AcceleratorError",
    "CompilationError",
    "OutOfMemoryError",
    "OutOfResources",
}
"""Names of exception types that Python or libraries define; a program cannot encode a secret in them."""


class Fault(Exception):
    """A program failed, with this status. Data, not an error of the judge."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def plain(self) -> Fault:
        """Return a copy without the traceback, whose frames keep workers and their memory alive."""
        return Fault(self.status, self.message)


def check_answer(answer: wire.Message, errors: dict[str, Status], what: str, *, withheld: bool) -> None:
    """Raise the fault that a worker reports, if it reports one.

    Args:
        answer: The worker's message.
        errors: Status by kind of error; `raised` covers kinds that are not listed.
        what: The step, for the message.
        withheld: Whether the program has received a secret that the task's later programs also receive. Then the
            message shows only the exception's type, if it is a known one, and the line.

    Raises:
        Fault: The worker reports an error.
    """
    if "error" not in answer:
        return
    kind: Any = answer["error"]
    status = errors.get(kind, errors["raised"]) if isinstance(kind, str) else errors["raised"]
    if withheld:
        name, line = answer.get("type"), answer.get("line")
        text = name if isinstance(name, str) and name in _KNOWN else "an exception"
        if isinstance(line, int) and 0 < line < _MAX_LINE:
            text += f" (line {line})"
        raise Fault(status, f"{what} failed: {text}; its text is withheld, because the program had seen secret inputs")
    text = answer.get("text", "")
    text = text[:_MAX_CHARS] if isinstance(text, str) else "(no text)"
    raise Fault(status, text if status in (Status.NO_CODE, Status.SYNTAX_ERROR) else f"{what} failed: {text}")


def fault_of_death(error: Dead, what: str, *, withheld: bool) -> Fault:
    """Return the fault for a worker's death."""
    number = error.how.get("signal")
    if error.how.get("closed"):
        return Fault(Status.CRASH, f"the worker closed its channel to the judge during {what}")
    if number == signal.SIGSYS:
        return Fault(Status.TAMPERING, f"a system call that no honest program needs was made during {what}")
    if number == signal.SIGKILL:
        return Fault(Status.OUT_OF_MEMORY, f"the worker was killed during {what}, most likely for its memory")
    if withheld:
        return Fault(Status.CRASH, f"the worker died during {what}")
    return Fault(Status.CRASH, f"the worker died {error} during {what}")
