"""Exit codes, user errors and Ctrl-C messages, shared by the three commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import sys
import traceback
from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import tyro

from cudal1_data.suggest import nearest

OK = 0
"""The command succeeded."""
NO = 1
"""Negative result: an attack was rewarded, a task has survivors, nothing faster was confirmed."""
USER_ERROR = 2
"""An argument, a file or this machine is unsuitable; standard error says which and what to do."""
OWN_FAULT = 70
"""Internal error (EX_SOFTWARE of sysexits.h)."""
TIME_IS_UP = 75
"""The time limit was reached (EX_TEMPFAIL); the same command, or --resume, continues."""
INTERRUPTED = 130
"""Ctrl-C; standard error says what was saved and how to continue."""

STATED_DEFAULT = tyro.conf.arg(help_behavior_hint="")
"""For an option whose description says what its absence means."""

Parsed = TypeVar("Parsed")


class Command(Protocol):
    """A parsed command."""

    def run(self) -> int | None:
        """Run the command; return its exit code, None for 0."""
        ...


@runtime_checkable
class Saves(Protocol):
    """A command that saves while it runs."""

    def saved(self) -> str:
        """Return what was saved and how to continue, as the end of a sentence."""
        ...


def finished(name: str, command: Command, errors: tuple[type[Exception], ...]) -> int:
    """Run a command; return its exit code.

    Args:
        name: The program's name.
        command: The parsed command.
        errors: Exceptions whose message is printed for the user; with `--json`, also as an object on standard output.
    """
    try:
        code = command.run() or OK
        sys.stdout.flush()
    except BrokenPipeError as error:
        if not _reader_is_gone():
            return _told(name, command, error)  # another pipe broke, not standard output
        _let_go_of_stdout()
        return OK
    except errors as error:
        return _told(name, command, error)
    except KeyboardInterrupt:
        saved = command.saved() if isinstance(command, Saves) else "nothing was saved; type the command again"
        print(f"\n{name}: interrupted; {saved}", file=sys.stderr, flush=True)
        return INTERRUPTED
    except Exception:  # noqa: BLE001 - Python would exit with 1, which means NO
        traceback.print_exc()
        return OWN_FAULT
    return code


def _told(name: str, command: Command, error: Exception) -> int:
    message = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        message = f"cannot use {os.fsdecode(error.filename)}: {error.strerror}; check the path and its permissions"
    print(f"{name}: {message}", file=sys.stderr, flush=True)
    if any(getattr(command, field, False) is True for field in ("json", "json_")):
        # Standard output may be what cannot be written.
        with contextlib.suppress(OSError):
            print(json.dumps({"error": type(error).__name__, "message": message}), flush=True)
    return USER_ERROR


def _reader_is_gone() -> bool:
    """Return whether the reader of standard output has closed it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _let_go_of_stdout() -> None:
    """Redirect standard output to /dev/null: it cannot be written, and Python flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_CHOICE = re.compile(r"invalid choice '([^']*)'.*?Expected one of \(([^)]*)\)", re.DOTALL)
_UNKNOWN = re.compile(r"Unrecognized options: (\S+).*?Available subcommands: ([\w, -]+)", re.DOTALL)


def parsed(parse: Callable[[], Parsed]) -> Parsed:
    """Return the result of an argument parser; on an unknown word, suggest the nearest known one.

    With `--json`, an error is also an object on standard output.

    Raises:
        SystemExit: The parser exited, or its output pipe broke.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            try:
                return parse()
            finally:
                sys.stdout.flush()  # the help
    except BrokenPipeError:
        _let_go_of_stdout()
        raise SystemExit(OK) from None
    except OSError as error:
        _let_go_of_stdout()
        print(f"cannot write to standard output: {error.strerror}; redirect it elsewhere", file=sys.stderr)
        raise SystemExit(USER_ERROR) from None
    except SystemExit as ended:
        text = said.getvalue()
        sys.stderr.write(text)
        if ended.code == USER_ERROR and "--json" in sys.argv:
            print(json.dumps({"error": "ArgumentError", "message": _plain(text)}))
        if (near := meant(text)) is not None:
            sys.stderr.write(f"did you mean {near}?\n")
        raise


def _plain(text: str) -> str:
    """Return tyro's message on one line, without its frame and colours."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[^\x20-\x7e]", " ", text).split())


def meant(text: str) -> str | None:
    """Return the known word nearest to the one that tyro's message rejects; None if there is none.

    >>> meant("invalid choice 'reprot' for argument. Expected one of ('training', 'report').")
    'report'
    """
    found = _CHOICE.search(_plain(text)) or _UNKNOWN.search(_plain(text))
    if found is None:
        return None
    near = nearest(found[1], re.findall(r"[\w.-]+", found[2]), count=1)
    return near[0] if near else None
