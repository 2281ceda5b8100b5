"""Judges in separate processes, one for each GPU, which receive jobs through a socket."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from cudal1_data import Task

from cudal1_env.errors import MachineError, TaskError
from cudal1_env.gate import AuditReport
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.records import Device, Evaluation, Precision
from cudal1_env.service.slot import JudgeFacts, Slot

_STOP_S = 60.0
"""Time limit for a judge to end."""
_LIST_S = 120.0
_LIST_GPUS = """
import json, torch
gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([[f"GPU-{gpu.uuid}", gpu.name] for gpu in gpus]))
"""


@dataclass(frozen=True)
class Begin:
    """First message to a judge's process."""

    settings: JudgeSettings
    audits: tuple[AuditReport, ...]
    """Audits of the tasks (`Judge.learn`)."""


class JudgeProcess:
    """A `SlotJudge` in a separate process.

    Args:
        begin: First message.
        gpu: The GPU that it sees, `GPU-...`; None for a CPU.
        deadline_s: Maximum time from the lease, or the previous verdict, to a verdict; a judge that exceeds it hangs.

    Raises:
        MachineError: The judge does not start.
    """

    def __init__(self, begin: Begin, *, gpu: str | None, deadline_s: float) -> None:
        self._name = gpu or "the CPU"
        self._deadline_s = deadline_s
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cudal1_env.service.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}),
                stdin=subprocess.DEVNULL,
                stdout=2,  # its output goes to the log
                start_new_session=True,  # Ctrl-C stops only the service, which stops its judges
            )
        self._connection = Connection(ours.detach())
        try:
            self._send(begin)
            self.facts: JudgeFacts = self._receive()
        except BaseException:
            self._kill()
            raise
        self._seeds: dict[str, str] = {}

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Evaluation | TaskError], None],
        *,
        precision: Precision = "training",
    ) -> None:
        """Judge candidates; see `EachEvaluator`."""
        self._send((list(jobs), precision))
        while (told := self._receive()) is not None:
            index, outcome = told
            done(index, TaskError(outcome) if isinstance(outcome, str) else outcome)
        self._seeds |= self._receive()

    def take_disclosed(self) -> dict[str, str]:
        """Return the seeds (hex) retired since the last call, by commitment."""
        seeds, self._seeds = self._seeds, {}
        return seeds

    def close(self) -> None:
        """Stop the judge, or kill it after `_STOP_S`."""
        with contextlib.suppress(MachineError):
            self._send(None)
            self._process.wait(_STOP_S)
        self._kill()

    def _send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._lost() from error

    def _receive(self) -> Any:
        """Return the next message.

        Raises:
            MachineError: The judge reports a machine error, died, or hangs.
        """
        try:
            if not self._connection.poll(self._deadline_s):
                raise MachineError(f"the judge on {self._name} has sent nothing for {self._deadline_s:.0f} s")
            message = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        if isinstance(message, MachineError):
            raise message
        return message

    def _lost(self) -> MachineError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        return MachineError(
            f"the judge on {self._name} died with exit code {self._process.returncode}; see its output in the log"
        )

    def _kill(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


def host_slots(device: Device, settings: JudgeSettings, audits: Sequence[AuditReport], deadline_s: float) -> list[Slot]:
    """Return a slot for each visible GPU of this host (`CUDA_VISIBLE_DEVICES`), or one slot for the CPU.

    Raises:
        MachineError: The GPUs cannot be listed.
    """
    begin = Begin(settings, tuple(audits))

    def slot(name: str, gpu: str | None) -> Slot:
        return Slot(name, lambda: JudgeProcess(begin, gpu=gpu, deadline_s=deadline_s))

    if device == "cpu":
        return [slot("cpu", None)]
    return [slot(uuid, uuid) for uuid, _ in _gpus()]


def _gpus() -> list[tuple[str, str]]:
    """Return UUID and model of each GPU, found in a separate process so that the service opens no GPU."""
    try:
        done = subprocess.run([sys.executable, "-c", _LIST_GPUS], capture_output=True, text=True, timeout=_LIST_S)
        found: list[tuple[str, str]] = [(uuid, name) for uuid, name in json.loads(done.stdout)]
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise MachineError(f"torch cannot list the GPUs of this host: {error}; see: cudal1-env doctor") from error
    if not found:
        raise MachineError("torch shows no GPU on this host; see: cudal1-env doctor, or serve with --device cpu")
    return found
