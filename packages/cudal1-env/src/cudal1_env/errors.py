"""Every exception that cudal1_env raises. A bad candidate is none of them: it is a record with a status.

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

from collections.abc import Collection

from cudal1_data.suggest import did_you_mean

TOO_LARGE = "it is too large for this machine"
"""What the text of each `TooLargeError` holds: records keep the text."""


class EnvError(Exception):
    """Base of all errors of this package."""


class TaskError(EnvError, ValueError):
    """A reference program that cannot be judged against."""


class TooLargeError(TaskError):
    """A reference for which there is too little memory: in all, or beside what else is kept.

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
    """Check that a setting is one of the values that it can have.

    Raises:
        SettingsError: It is another; the message offers the nearest.
    """
    if value not in known:
        raise SettingsError(f"unknown {what} {value!r}; {did_you_mean(str(value), known)}")


class MachineError(EnvError):
    """The machine's fault, never the candidate's."""


class NoRoomError(MachineError):
    """A GPU has too little memory free."""


class SandboxError(MachineError):
    """A sandbox layer that the settings demand is not to be had here."""


class WorkerLostError(MachineError):
    """A trusted process (zygote, oracle, reference arm) died."""


class RecordError(EnvError, ValueError):
    """A record that cannot be read or replayed."""
