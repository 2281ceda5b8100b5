"""This machine's judge for environments: started on first use, and shared by all environments of a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from cudal1_data import Task

from cudal1_env.gate import AuditReport
from cudal1_env.records import Device, Evaluation, Precision

if TYPE_CHECKING:
    from cudal1_env.judge import Judge


@dataclass
class _Shared:
    judge: Judge
    users: int


_Key = tuple[int, Device, tuple[AuditReport, ...]]

_shared: dict[_Key, _Shared] = {}
"""Judges by process id (a forked child must start its own), device and audits."""

_lock = threading.Lock()


class LocalEvaluator:
    """An `Evaluator` that starts its judge on first use and shares it with others of its process, device and audits."""

    def __init__(self, device: Device) -> None:
        """Prepare to judge on `device`; nothing is started yet."""
        self.device: Device = device
        self._key: _Key | None = None
        self._audits: tuple[AuditReport, ...] = ()

    def learn(self, audit: AuditReport) -> None:
        """Load an audit into the judge before its next call; see `Judge.learn`."""
        if audit not in self._audits:
            self._audits += (audit,)

    def evaluate(self, task: Task, source: str, *, precision: Precision = "training") -> Evaluation:
        """Judge one candidate; see `Evaluator`."""
        return self._judge().evaluate(task, source, precision=precision)

    def evaluate_many(self, jobs: Sequence[tuple[Task, str]], *, precision: Precision = "training") -> list[Evaluation]:
        """Judge many candidates; see `Evaluator`."""
        if len(jobs) == 1:  # an interrupt ends it at once, and a batch only when its workers have ended
            return [self.evaluate(*jobs[0], precision=precision)]
        return self._judge().evaluate_many(jobs, precision=precision)

    def retire(self) -> dict[str, str]:
        """Retire every seed in use and return all seeds so far (hex) by commitment."""
        with _lock:
            key = self._own_key()
            shared = _shared[key] if key else None
        return shared.judge.retire() if shared else {}

    def close(self) -> None:
        """Release the judge; the last user stops it."""
        with _lock:
            key, self._key = self._own_key(), None
            if key is None:
                return
            shared = _shared[key]
            shared.users -= 1
            if shared.users:
                return
            del _shared[key]
        shared.judge.close()

    def __enter__(self) -> Self:
        """Return this evaluator."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _own_key(self) -> _Key | None:
        """Return the key of the judge in use; None if there is none, or if it belongs to the process that forked."""
        return self._key if self._key is not None and self._key[0] == os.getpid() else None

    def _judge(self) -> Judge:
        """Return this process's judge with these audits, starting it if there is none."""
        key = (os.getpid(), self.device, self._audits)
        if self._key not in (None, key):
            self.close()
        with _lock:
            if key not in _shared:
                # Imported late, so that making an environment stays cheap.
                from cudal1_env.judge import Judge, JudgeSettings

                _shared[key] = _Shared(Judge(JudgeSettings(device=self.device)), users=0)
                for audit in self._audits:
                    _shared[key].judge.learn(audit)
            if self._key != key:
                self._key = key
                _shared[key].users += 1
            return _shared[key].judge
