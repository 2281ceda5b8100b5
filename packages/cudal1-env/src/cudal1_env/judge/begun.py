"""Helpers for candidates that are built together: dividing jobs, keys of pools, closing arms, naming device faults."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, wait

from cudal1_env.errors import MachineError, NoRoomError, TooLargeError
from cudal1_env.judge.device.base import Device
from cudal1_env.judge.measure.builder import Built
from cudal1_env.judge.measure.case import Case
from cudal1_env.records import Evaluation


def pool_key(case: Case, seed: bytes | None) -> tuple[str, str]:
    """Return the key of a pool: its task, and its seed if the caller chose one.

    `correct` precision has its own pool, so that timed verdicts never share its secrets.
    """
    if seed is not None:
        return case.task.id, seed.hex()
    return case.task.id, "correct" if case.precision == "correct" else ""


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


def close_arms(begun: Sequence[Future[Built | Evaluation]]) -> None:
    """Wait until every candidate is built, then kill those that are alive."""
    wait(begun)
    for one in begun:
        if one.exception() is None and isinstance(built := one.result(), Built) and built.arm is not None:
            built.arm.close()


def too_large(case: Case, error: NoRoomError | TooLargeError) -> TooLargeError:
    """Return the error for a task that is too large for this GPU even with no other pool open."""
    if isinstance(error, TooLargeError):
        return error
    return TooLargeError(
        f"{case.task.id}: the GPU has too little memory for its inputs, answers and both programs, although the judge "
        f"keeps nothing else ({error})"
    )


@contextlib.contextmanager
def faults_named(device: Device) -> Generator[None]:
    """Turn device failures inside the block into machine errors.

    Raises:
        NoRoomError: The device has too little memory.
        MachineError: The device failed in another way.
    """
    try:
        yield
    except device.faults as error:
        kind = NoRoomError if device.out_of_room(error) else MachineError
        raise kind(
            f"the GPU failed in the judge with {type(error).__name__}: {error}; start a new process, "
            "on another GPU if it goes on"
        ) from error
