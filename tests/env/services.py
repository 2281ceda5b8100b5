"""A service within the test's process, with prepared judges in the place of real ones."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cudal1_data import Task
from cudal1_env.errors import MachineError, TaskError
from cudal1_env.records import Evaluation, Precision
from cudal1_env.service.app import AppOptions
from cudal1_env.service.dispatch import Dispatcher
from cudal1_env.service.metrics import Metrics
from cudal1_env.service.server import Server, listen
from cudal1_env.service.slot import JudgeFacts, Slot
from cudal1_env.service.store import Store
from doubles.evaluator import RuleEvaluator, suite

MODEL = "a prepared judge"


class PreparedJudge(RuleEvaluator):
    """Returns prepared records; `# hold` in a program waits for `gate`, `# refuse` refuses the task."""

    def __init__(self, gate: threading.Event | None = None, model: str = MODEL) -> None:
        super().__init__()
        self.facts = JudgeFacts("cpu", model)
        self.gate = gate
        self.seeds: dict[str, str] = {}
        self.commitment: str | None = None

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Evaluation | TaskError], None],
        *,
        precision: Precision = "training",
    ) -> None:
        self.batches.append(len(jobs))
        for index, (task, source) in enumerate(jobs):
            if "# hold" in source and self.gate is not None:
                assert self.gate.wait(30)
            if "# refuse" in source:
                done(index, TaskError(f"{task.id}: refused, as the program asked"))
                continue
            self.jobs.append((task.id, source))
            one = self._judge(task, source)
            if precision == "correct":
                one = one.model_copy(update={"speedup": None, "reference": None, "candidate": None})
            done(index, one.model_copy(update={"precision": precision, "seed_commitment": self.commitment}))

    def take_disclosed(self) -> dict[str, str]:
        seeds, self.seeds = self.seeds, {}
        return seeds


@dataclass
class Running:
    """A service that runs, and what it is made of."""

    url: str
    dispatcher: Dispatcher
    server: Server
    judges: list[PreparedJudge]
    thread: threading.Thread
    gate: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        self.gate.set()
        self.server.handle_exit(15, None)
        self.thread.join(30)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def serving(
    *,
    judges: int = 1,
    begins: Sequence[Callable[[], PreparedJudge]] = (),
    store: Path | None = None,
    max_queued: int = 4096,
    retry_s: float = 300.0,
    port: int = 0,
    **options: object,
) -> Iterator[Running]:
    """Serve the toy suite on loopback, by prepared judges or by what `begins` makes in each slot."""
    gate = threading.Event()
    begun: list[PreparedJudge] = []

    def slot(number: int, begin: Callable[[], PreparedJudge]) -> Slot:
        def start() -> PreparedJudge:
            judge = begin()
            judge.gate = judge.gate or gate
            begun.append(judge)
            return judge

        return Slot(f"gpu{number}", start)

    slots = [slot(number, begin) for number, begin in enumerate(begins or [PreparedJudge] * judges)]
    dispatcher = Dispatcher(slots, Store(store), Metrics(), max_queued=max_queued, retry_s=retry_s)
    given = {"tasks": {task.id: task for task in suite()}} | options
    server = Server(dispatcher, AppOptions(**given))  # type: ignore[arg-type]  # the options of a test
    address = listen("127.0.0.1", port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [address]})
    thread.start()
    try:
        deadline = time.monotonic() + 10
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        running = Running(f"http://127.0.0.1:{address.getsockname()[1]}", dispatcher, server, begun, thread, gate)
        yield running
    finally:
        gate.set()
        server.handle_exit(15, None)
        thread.join(30)
        dispatcher.close()


class SlowJudge(PreparedJudge):
    """Takes 50 ms for each program."""

    def _judge(self, task: Task, source: str) -> Evaluation:
        time.sleep(0.05)
        return super()._judge(task, source)


class FailingJudge(PreparedJudge):
    """Starts, which takes a while as for a real judge, and breaks with any job."""

    def __init__(self) -> None:
        time.sleep(0.1)
        super().__init__()

    def evaluate_each(self, *args: object, **kwargs: object) -> None:
        raise MachineError("the GPU does not add up")


def broken_judge() -> PreparedJudge:
    raise MachineError("the GPU has fallen off the bus")
