"""The programs of tests/exploits: attacks and honest look-alikes, each with its expected status in a header.

Programs that need a GPU are in the folder `cuda`, and are named `cuda/NAME`.

A program begins with comments of the form `# key: value`:

    threat: id in docs/threats.md
    task: its task: a task id, or `file:NAME` for a file in tests/exploits/tasks
    device: `cpu` (the default), `cuda`, or `any` if the program does not depend on the device
    status: the expected status; several, separated by `|`, if timing or the machine decides
    idea: one sentence
    why: against which evaluators it works (attacks only)
    harm: what it does to a machine without a sandbox, if that is more than wasting a core for seconds
    or: `TaskError` if the judge may also refuse the task
    feedback: NAME: text between two NAMEs in the record is put into the program's dict NAME, in later rounds
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal1_data import Task, load_task

from cudal1_env.records import Device

HONEST = ".honest.py"
REFUSED = "TaskError"
KEYS = frozenset({"threat", "task", "device", "status", "idea", "why", "harm", "or", "feedback"})
"""Every key that a header may have."""

_HEADER = re.compile(r"# (\w+): (.+)")


@dataclass(frozen=True)
class Program:
    """One attack or look-alike."""

    path: Path
    header: dict[str, str]

    @property
    def name(self) -> str:
        """File name without `.py`, after `cuda/` if it is in that folder."""
        return ("cuda/" if self._in_cuda else "") + self.path.name.removesuffix(".py")

    @property
    def _in_cuda(self) -> bool:
        return self.path.parent.name == "cuda"

    @property
    def source(self) -> str:
        """Its text."""
        return self.path.read_text()

    @property
    def honest(self) -> bool:
        """Whether it is an honest look-alike."""
        return self.path.name.endswith(HONEST)

    @property
    def expected(self) -> tuple[str, ...]:
        """All outcomes that it may have."""
        statuses = tuple(one.split(",")[0].strip() for one in self.header["status"].split("|"))
        return (*statuses, self.header["or"]) if "or" in self.header else statuses

    def runs_on(self, device: Device) -> bool:
        """Return whether it is meant for a device."""
        return self.header.get("device", "cpu") in (device, "any")

    def task(self, device: Device = "cpu") -> Task:
        """Return its task, at the size for a device."""
        name = self.header["task"]
        folder = self.path.parents[1 if self._in_cuda else 0] / "tasks"
        return load_task(folder / name[5:] if name.startswith("file:") else name, device=device)


def exploits_folder() -> Path:
    """Return the folder of the programs: in the installed package, or tests/exploits of a checkout.

    Raises:
        FileNotFoundError: Neither exists.
    """
    here = Path(__file__).resolve()
    places = [here.parent / "exploits", *(folder / "tests" / "exploits" for folder in here.parents[5:6])]
    for place in places:
        if place.is_dir():
            return place
    raise FileNotFoundError(
        f"found no exploit programs in {' or '.join(map(str, places))}; "
        "install the wheel of cudal1-env, or work in a whole checkout"
    )


def programs(only: Sequence[str] = ()) -> list[Program]:
    """Return the programs, sorted by task so that those of one task share its oracle.

    Args:
        only: Prefixes of names; by default every program.
    """
    folder = exploits_folder()
    paths = [*folder.glob("h[0-9][0-9]_*.py"), *folder.glob("cuda/h[0-9][0-9]_*.py")]
    found = [Program(path, read_header(path)) for path in paths]
    chosen = [program for program in found if not only or program.name.startswith(tuple(only))]
    return sorted(chosen, key=lambda program: (program.header["task"], program.name))


def read_header(path: Path) -> dict[str, str]:
    """Return the header of a program: its leading lines of the form `# key: value`."""
    header: dict[str, str] = {}
    for line in path.read_text().splitlines():
        match = _HEADER.fullmatch(line)
        if match is None:
            break
        header[match[1]] = match[2]
    return header
