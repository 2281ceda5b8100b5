"""The dispatcher: one queue, and one thread for each judge, which takes batches from it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field

from cudal1_data import Task

from cudal1_env.errors import EnvError, MachineError, SettingsError, TaskError
from cudal1_env.records import Evaluation, Precision
from cudal1_env.service.metrics import Metrics
from cudal1_env.service.slot import JudgeFacts, Slot, SlotJudge, TaskKey
from cudal1_env.service.store import Key, Store

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
"""A job that has waited longer than this precedes jobs of tasks whose oracle the judge has."""
_FAULTS = 3
"""Consecutive faults that take a slot out of service."""
_TRIES = 2
"""Machine faults after which a job fails: the first in a batch, the second alone."""


class QueueFullError(Exception):
    """The queue has no room for these jobs.

    Args:
        retry_after_s: Seconds until the next try.
    """

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class Job:
    """One program and its pending verdict."""

    key: Key
    task: Task
    source: str
    precision: Precision
    salt: str
    future: Future[Evaluation] = field(default_factory=Future[Evaluation])
    """Receives the verdict, a `TaskError`, or a `MachineError`."""
    queued_at: float = field(default_factory=time.monotonic)
    faults: int = 0
    """Machine faults during its batches."""

    @property
    def of(self) -> TaskKey:
        """Id and reference of its task."""
        return self.task.id, self.task.source

    def __post_init__(self) -> None:
        """Make the future uncancellable: a client that disconnects may come back for it."""
        self.future.set_running_or_notify_cancel()


class Dispatcher:
    """A queue of jobs and the judges that take them.

    Args:
        slots: Slots of the judges.
        store: Finished verdicts.
        metrics: Counters.
        max_queued: Maximum number of waiting jobs.
        max_batch: Maximum number of jobs in a batch.
        retry_s: Pause before a slot that is out of service tries to start a judge again.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        store: Store,
        metrics: Metrics,
        *,
        max_queued: int = 4096,
        max_batch: int = 16,
        retry_s: float = 300.0,
    ) -> None:
        self.slots = tuple(slots)
        self.store = store
        self.metrics = metrics
        self.max_queued = max_queued
        self._max_batch = max_batch
        self._retry_s = retry_s
        self._wake = threading.Condition()
        self._queue: OrderedDict[str, Job] = OrderedDict()
        self._leased: dict[str, Job] = {}
        self.stopping = False
        self._threads = [threading.Thread(target=self._run, args=(slot,), name=slot.name) for slot in self.slots]
        metrics.queued.set_function(lambda: len(self._queue))
        metrics.leased.set_function(lambda: len(self._leased))
        metrics.judges.set_function(lambda: sum(slot.serving for slot in self.slots))

    def start(self) -> JudgeFacts:
        """Start the judges; return the facts of the first.

        Raises:
            MachineError: No judge starts.
            SettingsError: The judges have different models.
        """
        for thread in self._threads:
            thread.start()
        with self._wake:
            self._wake.wait_for(lambda: all(slot.facts or not slot.serving for slot in self.slots))
        models = {slot.name: slot.facts.model for slot in self.slots if slot.facts is not None}
        facts = self.facts
        if facts is None or len(set(models.values())) > 1:
            self.stop()
            if facts is None:
                raise MachineError(f"no judge starts: {self._why_out()}")
            named = ", ".join(f"{name} is a {model}" for name, model in models.items())
            raise SettingsError(
                f"judges of one service must have one GPU model, but {named}; start a service for each model, each "
                "with its GPUs in CUDA_VISIBLE_DEVICES"
            )
        return facts

    @property
    def facts(self) -> JudgeFacts | None:
        """Device and model of the judges; None if none has started."""
        return next((slot.facts for slot in self.slots if slot.facts is not None), None)

    @property
    def queued(self) -> int:
        """Number of jobs that wait for a judge."""
        return len(self._queue)

    @property
    def oldest_s(self) -> float:
        """How long the oldest job has waited, in seconds."""
        with self._wake:
            return max((time.monotonic() - job.queued_at for job in self._queue.values()), default=0.0)

    def submit(self, jobs: Sequence[Job]) -> list[Future[Evaluation]]:
        """Queue the jobs whose verdict is neither known nor pending; all of them or none.

        Returns:
            The future of each job.

        Raises:
            QueueFullError: The queue has no room for all of them.
            MachineError: The service is stopping, or no judge is in service.
        """
        found: dict[str, Future[Evaluation]] = {}
        with self._wake:  # a verdict is stored before its job is removed, so one of the two has it
            for job in jobs:
                known = self._queue.get(job.key.job) or self._leased.get(job.key.job)
                if known is not None:
                    found[job.key.job] = known.future
                elif (record := self.store.find(job.key)) is not None:
                    found[job.key.job] = Future()
                    found[job.key.job].set_result(record)
            self.metrics.repeated.inc(sum(job.key.job in found for job in jobs))
            fresh = {job.key.job: job for job in jobs if job.key.job not in found}
            if fresh:
                self._admit(len(fresh))
            self._queue |= fresh
            self._wake.notify_all()
        return [found[job.key.job] if job.key.job in found else fresh[job.key.job].future for job in jobs]

    def _admit(self, count: int) -> None:
        if self.stopping:
            raise MachineError("the service is stopping; post the job again when it is back")
        if not any(slot.serving for slot in self.slots):
            raise MachineError(f"no judge is in service: {self._why_out()}")
        if len(self._queue) + count > self.max_queued:
            self.metrics.turned_away.inc()
            raise QueueFullError(max(1, min(60, len(self._queue) // (4 * len(self.slots)))))

    def drain(self) -> None:
        """Accept no more jobs and drop the queue; judges finish the jobs that they have taken."""
        with self._wake:
            self.stopping = True
            self._drop_queue("the service is stopping; post the job again when it is back")
            self._wake.notify_all()

    def stop(self) -> None:
        """`drain`, wait for the judges to finish, and stop them."""
        self.drain()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def close(self) -> None:
        """`stop`, then close the store: also after Ctrl-C while judges start, and after a second stop signal."""
        self.stop()
        self.store.close()

    # --- batches -----------------------------------------------------------------------------------------------

    def _run(self, slot: Slot) -> None:
        """Keep a judge in a slot until the service stops."""
        while not self.stopping:
            try:
                judge = slot.begin()
            except Exception as error:  # noqa: BLE001 - after any error the slot tries again or goes out of service
                self._fault(slot, error)
                continue
            with closing(judge):
                self._serve(slot, judge)
        with self._wake:
            slot.enter("stopped")
            self._wake.notify_all()

    def _serve(self, slot: Slot, judge: SlotJudge) -> None:
        """Give batches to a judge until it breaks or the service stops."""
        with self._wake:
            slot.recent.clear()
            slot.facts = slot.facts or judge.facts
            slot.enter("idle")
            self._wake.notify_all()
        while batch := self._take(slot):
            try:
                self._judge(slot, judge, batch)
            except Exception as error:  # noqa: BLE001 - an error of a judge must not end the slot or lose jobs
                self._give_back(batch, error)
                self._fault(slot, error, batch)
                return
            finally:
                self.store.disclose(judge.take_disclosed())

    def _take(self, slot: Slot) -> list[Job]:
        """Wait for jobs and take a batch; an empty one when the service stops."""
        with self._wake:
            slot.enter("idle")
            self._wake.wait_for(lambda: self._queue or self.stopping)
            if self.stopping:
                return []
            batch = self._choose(slot)
            for job in batch:
                del self._queue[job.key.job]
                self._leased[job.key.job] = job
                self.metrics.wait_s.observe(time.monotonic() - job.queued_at)
            slot.lease([job.task for job in batch])
            return batch

    def _choose(self, slot: Slot) -> list[Job]:
        """Return a batch: the oldest job, then others of its task, then others; all of its precision.

        Until the oldest has waited for `_PATIENCE_S`, the oldest job of a task whose oracle the judge has goes first. A
        job after a machine fault is judged alone. A batch is at most this slot's share of the queue.
        """
        waiting = list(self._queue.values())
        first = waiting[0]
        if first.faults:
            return [first]
        healthy = [job for job in waiting if not job.faults]
        if time.monotonic() - first.queued_at < _PATIENCE_S:
            first = next((job for job in healthy if job.of in slot.recent), first)
        share = math.ceil(len(waiting) / max(1, sum(one.serving for one in self.slots)))
        places = {first.of: 0}
        same = [job for job in healthy if job.precision == first.precision]
        same.sort(key=lambda job: places.setdefault(job.of, len(places)))
        return same[: max(1, min(share, self._max_batch))]

    def _judge(self, slot: Slot, judge: SlotJudge, batch: list[Job]) -> None:
        leased_at = time.monotonic()

        def done(index: int, outcome: Evaluation | TaskError) -> None:
            job = batch[index]
            self.metrics.lease_s.observe(time.monotonic() - leased_at)
            if isinstance(outcome, TaskError):
                self.metrics.refused.inc()
            else:
                self.metrics.verdicts.labels(outcome.status).inc()
                outcome = self.store.add(job.key, job.salt, outcome)
                slot.verdicts += 1
            with self._wake:
                slot.faults, slot.message = 0, ""
                slot.blamed.clear()
                slot.jobs -= 1
                del self._leased[job.key.job]
            if isinstance(outcome, TaskError):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

        judge.evaluate_each([(job.task, job.source) for job in batch], done, precision=batch[0].precision)

    def _give_back(self, batch: list[Job], error: Exception) -> None:
        """Put jobs without a verdict back at the front of the queue; after `_TRIES` faults a job gets the error."""
        with self._wake:
            for job in reversed(batch):
                if self._leased.pop(job.key.job, None) is None:
                    continue
                job.faults += 1
                if job.faults >= _TRIES or self.stopping:
                    job.future.set_exception(MachineError(f"{error}; post the job again"))
                else:
                    self._queue[job.key.job] = job
                    self._queue.move_to_end(job.key.job, last=False)

    def _fault(self, slot: Slot, error: Exception, batch: Sequence[Job] = ()) -> None:
        """Count a fault; after `_FAULTS` in a row, take the slot out of service for `retry_s`.

        Faults with only programs that broke this slot's judge before do not count: the next judge starts.
        """
        self.metrics.faults.labels(slot.name).inc()
        with self._wake:
            draws = {job.key.draw for job in batch}
            slot.faults += not draws or not draws <= slot.blamed
            slot.blamed |= draws
            slot.message = str(error) if isinstance(error, EnvError) else f"{type(error).__name__}: {error}"
            if slot.faults < _FAULTS:
                slot.enter("starting")
                log.warning("the judge on %s broke and is started again: %s", slot.name, slot.message)
                return
            slot.enter("out")
            log.error("%s is out of service for %.0f s: %s", slot.name, self._retry_s, slot.message)
            if not any(one.serving for one in self.slots):
                self._drop_queue(f"no judge is in service: {self._why_out()}")
            self._wake.notify_all()
            self._wake.wait_for(lambda: self.stopping, self._retry_s)
            if not self.stopping:
                slot.enter("starting")

    def _drop_queue(self, why: str) -> None:
        for job in self._queue.values():
            job.future.set_exception(MachineError(why))
        self._queue.clear()

    def _why_out(self) -> str:
        return "; ".join(f"{slot.name}: {slot.message}" for slot in self.slots if slot.message)
