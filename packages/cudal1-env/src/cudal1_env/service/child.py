"""Process of one judge: `python -m cudal1_env.service.child DESCRIPTOR`; `process.py` is the other side."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from cudal1_env.errors import EnvError, MachineError, TaskError
from cudal1_env.judge import Judge
from cudal1_env.records import Evaluation
from cudal1_env.service.process import Begin
from cudal1_env.service.slot import JudgeFacts


def main(descriptor: int) -> None:
    """Judge the jobs that the service sends, until it sends None."""
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    begin: Begin = inbox.get()
    try:
        judge = Judge(begin.settings)
    except EnvError as error:
        connection.send(MachineError(str(error)))
        return
    with judge:
        for audit in begin.audits:
            judge.learn(audit)
        connection.send(JudgeFacts(judge.device.name, judge.device.model))
        while (batch := inbox.get()) is not None:
            jobs, precision = batch

            def done(index: int, outcome: Evaluation | TaskError) -> None:
                connection.send((index, str(outcome) if isinstance(outcome, TaskError) else outcome))

            try:
                judge.evaluate_each(jobs, done, precision=precision)
            except MachineError as error:
                connection.send(MachineError(str(error)))
                return
            except Exception as error:  # its state may be anything now: the service starts another judge
                connection.send(MachineError(f"the judge failed with {type(error).__name__}: {error}"))
                raise
            connection.send(None)
            connection.send(judge.take_disclosed())


def _read(connection: Connection, inbox: queue.SimpleQueue[Any]) -> None:
    """Fill the inbox; kill this process at once when the service ends."""
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGKILL)
            return
        inbox.put(message)
        if message is None:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
