"""What a program did wrong, as data, and how much of its own words is told."""

from __future__ import annotations

import builtins
from typing import Any

from cudal1_worker import protocol as wire

from cudal1_env.judge.workers.worker import Dead
from cudal1_env.records import Status

_SIGSYS = 31
_SIGKILL = 9
_MOST_CHARS = 2000
_MOST_LINES = 10_000
"""A line number is the worker's to choose: a larger one is not told."""
_KNOWN = {name for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, BaseException)} | {
    "AcceleratorError",
    "CompilationError",
    "OutOfMemoryError",
    "OutOfResources",
}
"""Names of exceptions that a program did not choose."""


class Fault(Exception):
    """A program failed, with the status that this gets. Data, not an error of the judge."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def plain(self) -> Fault:
        """Return it as data: without the frames that it came through, which hold workers and their memory."""
        return Fault(self.status, self.message)


def check_answer(answer: wire.Message, errors: dict[str, Status], what: str, *, withheld: bool) -> None:
    """See whether a worker reports an error.

    Args:
        answer: What it sent.
        errors: Status by kind of error; `raised` for kinds that are not listed.
        what: What was going on.
        withheld: Whether the program has received a secret that later programs of the task will receive, too. Then its
            words stay in the judge: only the exception's type, if Python or torch named it, and the line are told.

    Raises:
        Fault: It does.
    """
    if "error" not in answer:
        return
    kind: Any = answer["error"]
    status = errors.get(kind, errors["raised"]) if isinstance(kind, str) else errors["raised"]
    if withheld:
        name, line = answer.get("type"), answer.get("line")
        text = name if isinstance(name, str) and name in _KNOWN else "an exception"
        if isinstance(line, int) and 0 < line < _MOST_LINES:
            text += f" (line {line})"
        raise Fault(status, f"{what} failed: {text}; its text is withheld, because the program had seen secret inputs")
    text = answer.get("text", "")
    text = text[:_MOST_CHARS] if isinstance(text, str) else "(no text)"
    raise Fault(status, text if status in (Status.NO_CODE, Status.SYNTAX_ERROR) else f"{what} failed: {text}")


def fault_of_death(error: Dead, what: str, *, withheld: bool) -> Fault:
    """Return what the end of a worker means.

    Args:
        error: How it ended.
        what: What was going on.
        withheld: See `check_answer`; an exit code is the program's to choose.
    """
    number = error.how.get("signal")
    if error.how.get("closed"):
        return Fault(Status.CRASH, f"the worker closed its channel to the judge during {what}")
    if number == _SIGSYS:
        return Fault(Status.TAMPERING, f"a system call that no honest program needs was made during {what}")
    if number == _SIGKILL:
        return Fault(Status.OUT_OF_MEMORY, f"the worker was killed during {what}, most likely for its memory")
    if withheld:
        return Fault(Status.CRASH, f"the worker died during {what}")
    how = f"of signal {number}" if number is not None else f"with exit code {error.how.get('exit')}"
    return Fault(Status.CRASH, f"the worker died {how} during {what}")
