"""Programs known for a task before a policy's first answer, measured to serve as exemplars in prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from cudal1_data import Task, usable_variants
from cudal1_data.corpus.build import build
from cudal1_data.hashes import digest
from cudal1_data.techniques import Backend

from cudal1_env.archive import Archive
from cudal1_env.exemplars import BUCKET_WIDTH, bucket_of, distinct, scored
from cudal1_env.records import Device

BACKENDS: dict[Device, tuple[Backend, ...]] = {"cpu": ("pytorch",), "cuda": ("pytorch", "triton", "cuda-nvrtc")}
"""Backends of the seed programs that templates write. An inline extension would take most of a minute to build."""


@dataclass(frozen=True)
class Seeding:
    """How many programs of a task to measure before a policy's first answer."""

    programs: int = 6
    """Number of correct programs wanted for each task; 0 disables seeding."""
    buckets: int = 3
    """Number of score buckets that they should fill."""
    width: float = BUCKET_WIDTH
    """Width of a bucket, as a speedup."""
    most: int = 12
    """Maximum number of programs measured for a task, correct or not."""

    def missing(self, speedups: Sequence[float]) -> int:
        """Return how many more programs are wanted, in addition to those with these speedups.

        >>> Seeding(programs=3, buckets=2).missing([1.0]), Seeding(programs=3, buckets=2).missing([1.0] * 3)
        (2, 1)
        """
        filled = {bucket_of(speedup, self.width) for speedup in speedups}
        return max(self.programs - len(speedups), self.buckets - len(filled), 0) if self.programs else 0


def known_programs(task: Task, device: Device, have: Set[str], *, most: int = 12) -> list[str]:
    """Return the known programs of a task, each once: first its variants, then those that templates write.

    Args:
        task: The task.
        device: Where the programs run.
        have: What the machine has (`compiler`, ...), see `usable_variants`.
        most: Maximum number of programs.
    """
    sources = [variant.source for variant in usable_variants(task, device, have)]
    backends: list[Backend] = [name for name in BACKENDS[device] if name != "triton" or "triton" in have]
    pairs = build([task], per_task=most, backends=backends)
    sources += [pair.source for pair in pairs if device == "cuda" or not pair.needs_gpu]
    return list(dict.fromkeys(sources))[:most]


def seed_archive(
    tasks: Sequence[Task],
    archive: Archive,
    measure: Callable[[list[tuple[Task, str]]], object],
    *,
    device: Device,
    have: Set[str],
    seeding: Seeding,
    written: Callable[[str], str] = str,
) -> None:
    """Measure known programs until the archive has enough of each task, or no more are known.

    Programs that the archive already has are counted and not measured again, so a second call changes nothing.

    Args:
        tasks: The tasks.
        archive: Where their evaluations are kept.
        measure: Judges programs and adds the verdicts to the archive.
        device: Where programs run.
        have: What the machine has, see `known_programs`.
        seeding: How many are enough.
        written: Writes a reference as templates should read it, so that their programs have the names of a prompt.
    """
    seeded = tasks if seeding.programs else ()
    read = [task.model_copy(update={"source": written(task.source)}) for task in seeded]
    left = {task.id: known_programs(task, device, have, most=seeding.most) for task in read}
    while True:
        jobs: list[tuple[Task, str]] = []
        for task in seeded:
            evaluations = [
                one for one in archive.variants(task.id, correct_only=False) if one.task_source == task.source
            ]
            measured = {one.source_sha256 for one in evaluations if one.precision != "correct"}
            queue = [source for source in left[task.id] if digest(source) not in measured]
            wanted = seeding.missing([one.speedup for one in distinct(scored(evaluations))])
            jobs += [(task, source) for source in queue[:wanted]]
            left[task.id] = queue[wanted:]
        if not jobs:
            return
        measure(jobs)
