"""The exceptions that cudal1_env raises. A bad candidate raises none: its record has a status.

```
EnvError                      anything below
|- TaskError (ValueError)     the reference cannot be used: it fails, or its output is random
|  `- TooLargeError            there is too little memory for it
|- SettingsError (ValueError) settings that contradict each other or this machine
|- MachineError               this machine broke or lacks something: retry elsewhere
|  |- NoRoomError             a GPU has too little memory free
|  |- SandboxError            a sandbox layer that was demanded is missing
|  `- WorkerLostError         a worker died for a reason that is not the candidate's
`- RecordError (ValueError)   a record that cannot be read or replayed
```
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator
from pathlib import Path

from cudal1_data.suggest import did_you_mean

TOO_LARGE = "it is too large for this machine"
"""Part of every `TooLargeError` message, by which records of it are recognized."""


def printable(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 cannot encode, replaced by question marks."""
    return text.encode("utf-8", "replace").decode()


class EnvError(Exception):
    """Base of all errors of this package; their texts may quote a stranger's, and are `printable`."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(one) if isinstance(one, str) else one for one in args))


class TaskError(EnvError, ValueError):
    """A reference program that cannot be used to judge candidates."""


class TooLargeError(TaskError):
    """A reference that needs more memory than the machine has, or has free.

    Args:
        text: What failed.
    """

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text}; {TOO_LARGE}: `cudal1-data export SUITE FILE --scale 4` writes the suite with a quarter of each "
            "batch"
        )


class SettingsError(EnvError, ValueError):
    """Settings that contradict each other or the machine."""


def check_choice(what: str, value: object, known: Collection[str]) -> None:
    """Check that a setting has an allowed value.

    Raises:
        SettingsError: The value is not allowed; the message suggests the nearest.
    """
    if value not in known:
        raise SettingsError(f"unknown {what} {value!r}; {did_you_mean(str(value), known)}")


class MachineError(EnvError):
    """A failure of the machine, never of the candidate."""


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Raise a `MachineError` that names the path where the block cannot write there, as on a full disk."""
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"cannot write to {path}: {error.strerror}; free some space, or choose another folder"
        ) from error


class NoRoomError(MachineError):
    """A GPU has too little memory free."""


class SandboxError(MachineError):
    """A required sandbox layer is not available here."""


class WorkerLostError(MachineError):
    """A trusted process (zygote, oracle, reference arm) died."""


class RecordError(EnvError, ValueError):
    """A record that cannot be read or replayed."""
