"""Control groups of one worker: they limit its memory and tasks, and list all its processes for SIGKILL.

The cpu controller shares a core equally among workers, however many processes or sessions each has. Otherwise a program
that starts hundreds would starve the imports of other programs until they time out.

Version 1 (one folder for each controller) and version 2 (one folder) are both supported, below the judge's own group.
If the judge may not make groups, there is no cage, and only the other layers apply.

Control groups are deliberately not used for freezing. It takes longer than SIGSTOP with confirmation (measured:
version 1 180 us against 76 us, version 2 milliseconds), and processes frozen by version 1 ignore SIGKILL: a killed
judge would leave processes behind that cannot end until they are thawed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from cudal1_env.errors import MachineError
from cudal1_env.sandbox.owned import make_owned, remove_abandoned

_PREFIX = "cudal1-worker-"
_CONTROLLERS = ("memory", "pids", "cpu")


class CgroupUnavailable(Exception):
    """No control group can be made here; the message says why."""


class Cage:
    """The control groups of one worker. Make it with `Cage.make`."""

    def __init__(self) -> None:
        self._folders: dict[str, Path] = {}
        """Folders by controller; in version 2 all are the same folder."""
        self._locks: list[int] = []

    @property
    def controllers(self) -> tuple[str, ...]:
        """Which of `memory`, `pids` and `cpu` this cage has."""
        return tuple(self._folders)

    @classmethod
    def make(cls) -> Cage:
        """Make the groups of a worker, and remove those of killed judges.

        Raises:
            CgroupUnavailable: No group could be made, or none has a controller.
        """
        own = own_groups()
        cage, reasons = cls(), list[str]()
        for controller in _CONTROLLERS:
            if controller in own:
                try:
                    cage._folders[controller] = cage._make_folder(own[controller])
                except OSError as error:
                    reasons.append(str(error))
        if not cage._folders and "" in own:
            try:
                folder = cage._make_folder(own[""])
                cage._folders = {key: folder for key in _CONTROLLERS if (folder / f"{key}.max").exists()}
                if not cage._folders:
                    folder.rmdir()
                    reasons.append(f"{own['']} delegates none of memory, pids and cpu")
            except OSError as error:
                reasons.append(str(error))
        if not cage._folders:
            cage.remove()
            raise CgroupUnavailable("; ".join(reasons) or "no control groups are mounted")
        return cage

    def _make_folder(self, parent: Path) -> Path:
        remove_abandoned(parent, _PREFIX, _remove_empty)
        folder, lock = make_owned(parent, _PREFIX)
        self._locks.append(lock)
        return folder

    def limit(self, *, memory_bytes: int | None = None, tasks: int | None = None) -> None:
        """Set the limits of memory (including swap, if it is counted) and of tasks, if the cage has the controllers."""
        if memory_bytes is not None and "memory" in self._folders:
            version_1 = {"memory.limit_in_bytes": memory_bytes, "memory.memsw.limit_in_bytes": memory_bytes}
            version_2 = {"memory.max": memory_bytes, "memory.swap.max": 0}
            for file, value in (version_1 | version_2).items():
                path = self._folders["memory"] / file
                if path.exists():
                    path.write_text(str(value))
        if tasks is not None and "pids" in self._folders:
            (self._folders["pids"] / "pids.max").write_text(str(tasks))

    def add(self, pid: int) -> None:
        """Move a process, without its existing children, into the cage.

        Raises:
            ProcessLookupError: The process is dead.
        """
        for folder in set(self._folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def members(self) -> list[int]:
        """Return the pids of all processes inside, in the judge's pid namespace."""
        pids: set[int] = set()
        for folder in set(self._folders.values()):
            pids.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
        return sorted(pids)

    def kill(self) -> None:
        """Send SIGKILL to every process inside."""
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self, timeout_s: float = 5.0) -> None:
        """Kill the remaining processes and remove the groups; a second call does nothing.

        Raises:
            MachineError: A process does not die.
        """
        deadline = time.monotonic() + timeout_s
        while self._folders and self.members():
            self.kill()
            if time.monotonic() > deadline:
                raise MachineError(f"processes {self.members()} did not die within {timeout_s:g} s of SIGKILL")
            time.sleep(0.001)
        for folder in set(self._folders.values()):
            # The last process is dead, but the kernel may still count it briefly.
            while True:
                try:
                    folder.rmdir()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.001)
        self._folders = {}
        while self._locks:
            os.close(self._locks.pop())


def own_groups() -> dict[str, Path]:
    """Return the folder of this process's group by controller; the key of version 2 is `""`."""
    mounted: dict[str, tuple[str, Path]] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            head, _, tail = line.partition(" - ")
            fields, kind = head.split(" "), tail.split(" ")
            if kind[0] == "cgroup2":
                mounted.setdefault("", (fields[3], Path(fields[4])))
            elif kind[0] == "cgroup":
                for name in kind[2].strip().split(","):
                    mounted.setdefault(name, (fields[3], Path(fields[4])))
    own: dict[str, Path] = {}
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, names, path = line.strip().split(":", 2)
            for name in names.split(","):
                if name in mounted:
                    root, point = mounted[name]
                    # The root of the mount may be a group below the top.
                    own[name] = point / os.path.relpath(path, root)
    return {name: path for name, path in own.items() if path.is_dir()}


def _remove_empty(group: Path) -> None:
    """Remove a killed judge's group, unless its worker is still dying."""
    with contextlib.suppress(OSError):
        group.rmdir()
