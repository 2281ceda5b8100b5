"""Precompiled headers: g++ takes half as long for the bindings of an extension (decision 010).

The judge makes them in a process of its own, beside its work, and workers see them read-only. They are kept in the
user's cache folder, one folder for each toolchain.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from cudal1_env.calibration import cache_folder
from cudal1_env.judge.workers.build_folders import remove
from cudal1_env.judge.workers.build_store import build_key, is_own
from cudal1_env.judge.workers.lease import away_from
from cudal1_env.judge.workers.toolchain import toolchain
from cudal1_env.sandbox import clean_environment
from cudal1_env.sandbox.owned import make_owned, remove_abandoned

_ASIDE = "new-"
_WORTHWHILE = 3
"""A judge begins to make them at this program with an extension: making them costs what two programs save."""
_TIMEOUT_S = 300.0
_UNUSED_S = 30 * 86400.0
"""Seconds after which unused headers, 0.3 GB each, are removed."""


class Headers:
    """Headers of one judge's toolchain. Several threads may call it.

    Args:
        environment: The device's variables, which may name compilers.
        kept: Whether they may be written to the cache folder; without, there are none.
        core: Core of the timed programs, which the compiler leaves alone; None if there is only one.
    """

    def __init__(self, environment: Mapping[str, str], *, kept: bool, core: int | None = None) -> None:
        self._environment = clean_environment(**environment)
        self._kept = kept
        self._away = frozenset[int]() if core is None else frozenset({core})
        self._expected = 0
        self._lock = threading.Lock()
        self._place: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    @property
    def folder(self) -> str | None:
        """Folder of the headers; None until they are complete, or if others could have written them."""
        place = self._place
        return str(place) if place is not None and is_own(place.parent) and is_own(place) else None

    def expect(self) -> None:
        """Count a program with an extension, and begin to make the headers if that is worthwhile."""
        with self._lock:
            self._expected += 1
            if self._kept and self._place is None:
                self._place = cache_folder() / "headers" / build_key(toolchain(self._environment))
                with contextlib.suppress(OSError):
                    os.utime(self._place)
            if self._expected == _WORTHWHILE and self._place is not None and self.folder is None:
                self._thread = threading.Thread(target=self._make, args=(self._place,), daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until headers that were begun are complete, or cannot be made."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop making them."""
        with self._lock:
            self._kept, self._place = False, None
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()

    def _make(self, place: Path) -> None:
        """Make the headers, or leave none where that fails: extensions compile without."""
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not is_own(place.parent):
                return
            remove_abandoned(place.parent, _ASIDE, remove)
            for other in place.parent.iterdir():
                if time.time() - other.stat().st_mtime > _UNUSED_S:
                    remove(other)
            aside, lock = make_owned(place.parent, _ASIDE)
            try:
                if self._run(aside):
                    os.rename(aside, place)  # fails where another judge was faster
            finally:
                if aside.is_dir():
                    remove(aside)
                os.close(lock)

    def _run(self, folder: Path) -> bool:
        """Run the compiler; return whether it succeeded."""
        command = [sys.executable, "-P", "-m", "cudal1_worker.compilers.headers", str(folder)]
        null = subprocess.DEVNULL
        with self._lock:
            if not self._kept:  # closed meanwhile
                return False
            with away_from(self._away):  # the process stays where this thread may run
                self._process = subprocess.Popen(
                    command, env=self._environment, stdin=null, stdout=null, stderr=null, process_group=0
                )
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_TIMEOUT_S) == 0
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return False
