"""Pools of all tasks: opened for a task's first program, retired when spent or when others need memory."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from cudal1_env.errors import TaskError, TooLargeError
from cudal1_env.gate import reference_sha256
from cudal1_env.judge.measure.builder import Builder
from cudal1_env.judge.measure.case import Case
from cudal1_env.judge.oracle.pool import SEED_BYTES, Findings, Pool
from cudal1_env.judge.settings import JudgeSettings


def parts(tasks: Sequence[str], *, max_jobs: int, max_tasks: int) -> Iterator[list[int]]:
    """Divide jobs into parts; a task's jobs stay together, because they share its pool.

    >>> list(parts(["b", "a", "b", "c"], max_jobs=2, max_tasks=2)), list(parts("aab", max_jobs=9, max_tasks=1))
    ([[0, 2], [1, 3]], [[0, 1], [2]])
    """
    part: list[int] = []
    places = {task: place for place, task in enumerate(dict.fromkeys(tasks))}
    for index in sorted(range(len(tasks)), key=lambda index: places[tasks[index]]):
        if len(part) == max_jobs or len({tasks[one] for one in [*part, index]}) > max_tasks:
            yield part
            part = []
        part.append(index)
    if part:
        yield part


class Pools(OrderedDict[tuple[str, str], Pool]):
    """The open pools by `Case.key`, the most recently used at the end."""

    def __init__(self, builder: Builder) -> None:
        super().__init__()
        self._builder, self._settings, self._device = builder, builder.settings, builder.device
        self.factors: dict[str, float] = {}
        """Error factors of tasks that an audit tightened, by hash of the reference."""
        self._findings = Findings()
        self.disclosed: dict[str, str] = {}
        """Seeds (hex) of retired pools, by commitment."""

    def take(self, case: Case, busy: Container[tuple[str, str]] = ()) -> Pool:
        """Return the pool for one more candidate; open one if the task has none, but retire no busy one for it.

        If its oracle lacks a GPU's memory, the other pools are retired, and it starts once more.

        Raises:
            TaskError: The task's reference is unusable.
        """
        pool = self.kept(case)
        if pool is None:
            self.make_room(busy)
            try:
                pool = self.new(case)
            except TooLargeError:
                idle = [key for key in self if key not in busy]
                if not idle or self._device.free_bytes() is None:
                    raise
                self.retire(*idle)
                pool = self.new(case)
            self[case.key] = pool
        self.move_to_end(case.key)
        pool.candidates += 1
        self.allot(pool)
        return pool

    def allot(self, pool: Pool) -> None:
        """Give a pool the memory that the others leave: they keep at most half, the least recently used yield first."""
        most = self._device.pool_bytes(self._settings.pool_bytes)
        others = [one for one in self.values() if one is not pool]
        taken = sum(one.size_bytes for one in others)
        for one in others:
            if taken <= most // 2:
                break
            taken -= one.size_bytes
            one.forget()
        pool.max_bytes = most - taken

    def kept(self, case: Case) -> Pool | None:
        """Return the open pool of a case's task; retire one that is closed, spent, or of another task with this id."""
        pool = self.get(case.key)
        if pool is None:
            return None
        if pool.closed or pool.task.source != case.task.source or (case.seed is None and pool.is_spent):
            self.retire(case.key)
            return None
        return pool

    def renew(self, key: tuple[str, str], count: int) -> None:
        """Retire a pool that would be spent before so many programs are judged, so that it stays the same meanwhile."""
        pool = self.get(key)
        if pool is not None and pool.candidates + count > self._settings.pool_candidates:
            self.retire(key)

    def new(self, case: Case) -> Pool:
        """Return a new pool with its own oracle; draw a secret seed if the caller chose none."""
        with case.watch.phase("oracle"):
            return Pool(
                case.task,
                self._builder.zygote,
                self._builder.spec(None, core=None),
                self._device,
                self._settings_for(case),
                case.seed or secrets.token_bytes(SEED_BYTES),
                self._findings,
            )

    def _settings_for(self, case: Case) -> JudgeSettings:
        """Return the settings, with the task's error factor if an audit tightened it.

        At `correct` precision all outputs are compared whole.
        """
        most = self._settings.error_factor
        factor = min(self.factors.get(reference_sha256(case.task), most), most)
        share = 1.0 if case.precision == "correct" else self._settings.full_check_share
        return self._settings.model_copy(update={"error_factor": factor, "full_check_share": share})

    def open(self, executor: ThreadPoolExecutor, wanted: Sequence[Case]) -> dict[tuple[str, str], TaskError]:
        """Open the missing pools in parallel; return the errors of tasks that cannot be judged.

        That an oracle lacked memory is no such error: others were starting, and `take` tries again.
        """
        missing = {one.key: one for one in wanted if self.kept(one) is None}
        kept = {one.key for one in wanted}
        others = [key for key in self if key not in kept]
        self.retire(*others[: max(0, len(self) + len(missing) - self._settings.max_pools)])
        begun = {key: executor.submit(self.new, one) for key, one in missing.items()}
        wait(begun.values())
        refused: dict[tuple[str, str], TaskError] = {}
        broken: BaseException | None = None
        for key, one in begun.items():
            error = one.exception()
            if error is None:
                self.make_room()
                self[key] = one.result()
            elif not isinstance(error, TaskError):
                broken = error
            elif not isinstance(error, TooLargeError):
                refused[key] = error
        if broken is not None:
            raise broken
        return refused

    @property
    def is_crowded(self) -> bool:
        """Whether one more pool would be too many, or its programs would have too little memory."""
        most, free = self._device.pool_bytes(self._settings.pool_bytes), self._device.free_bytes()
        kept = sum(pool.size_bytes for pool in self.values())
        return len(self) >= self._settings.max_pools or kept > most // 2 or (free is not None and free < most)

    def make_room(self, busy: Container[tuple[str, str]] = ()) -> None:
        """Retire the least recently used pools, but no busy ones, until there is room for a new pool."""
        for key in [key for key in self if key not in busy]:
            if not self.is_crowded:
                return
            self.retire(key)

    def retire(self, *keys: tuple[str, str]) -> None:
        """Close pools, as far as they are open, and disclose their seeds; their oracles die at the same time."""
        pools = [self.pop(key) for key in keys if key in self]
        for pool in pools:
            pool.oracle.worker.interrupt()
        for pool in pools:
            pool.close()
            self.disclosed[pool.secrets.commitment] = pool.secrets.seed.hex()

    def retire_others(self, pool: Pool) -> None:
        """Retire all pools but one, which gets their memory."""
        self.retire(*[key for key, one in self.items() if one is not pool])
        self.allot(pool)
