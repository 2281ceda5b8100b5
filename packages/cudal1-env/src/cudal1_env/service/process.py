"""Judges as processes of their own: one for each GPU, told what to judge through a socket."""

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
"""How long a judge may take to end."""
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
    """What is known of the tasks' inputs (`Judge.learn`)."""


class JudgeProcess:
    """A judge in a process of its own; a `SlotJudge`.

    Args:
        begin: What it is told first.
        gpu: `GPU-...`, the one that it sees; None for a CPU.
        deadline_s: Longest time from the lease, or from the verdict before, to a verdict: a judge that takes longer
            hangs.

    Raises:
        MachineError: It does not start.
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
                stdout=2,  # what it prints goes to the log
                start_new_session=True,  # an interrupt at the terminal stops the service, which stops its judges
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
        """Return the seeds that it will never use again, since the last call, by their commitments."""
        seeds, self._seeds = self._seeds, {}
        return seeds

    def close(self) -> None:
        """Stop it, or kill it if it does not stop."""
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
            MachineError: The judge says that its machine broke, it died, or it hangs.
        """
        try:
            if not self._connection.poll(self._deadline_s):
                raise MachineError(f"the judge on {self._name} has said nothing for {self._deadline_s:.0f} s")
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
            f"the judge on {self._name} died with exit code {self._process.returncode}; the log says what it wrote"
        )

    def _kill(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


def host_slots(device: Device, settings: JudgeSettings, audits: Sequence[AuditReport], deadline_s: float) -> list[Slot]:
    """Return a slot for each GPU that this host shows (`CUDA_VISIBLE_DEVICES`), on a CPU one.

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
    """Identity and model of each GPU, found in a process of its own: the service opens none."""
    try:
        done = subprocess.run([sys.executable, "-c", _LIST_GPUS], capture_output=True, text=True, timeout=_LIST_S)
        found: list[tuple[str, str]] = [(uuid, name) for uuid, name in json.loads(done.stdout)]
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise MachineError(f"torch cannot list the GPUs of this host: {error}; see: cudal1-env doctor") from error
    if not found:
        raise MachineError("torch shows no GPU on this host; see: cudal1-env doctor, or serve with --device cpu")
    return found
