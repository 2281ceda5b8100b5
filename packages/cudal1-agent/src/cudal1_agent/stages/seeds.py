"""Seeding before stage 3: measure known programs of the training tasks, so that the first prompts have exemplars."""

from __future__ import annotations

from cudal1_data import Task
from cudal1_env.exemplars import bucket_of, distinct, scored
from cudal1_env.hardware import available_needs
from cudal1_env.known import Seeding, seed_archive

from cudal1_agent.data.canonical import canonical
from cudal1_agent.run.checkpoints import Checkpoint
from cudal1_agent.run.session import Session


def seed(session: Session, _: Checkpoint | None) -> None:
    """Measure known programs until each task of stage 3 has enough of them in enough score buckets, or none is left.

    Args:
        session: The run.
        _: Unused: what an interrupted phase has measured is in the archive.
    """
    settings = session.settings.contrast
    seeding = Seeding(programs=settings.seed_programs, buckets=settings.seed_buckets, width=settings.width)
    tasks = session.contrasted
    with session.progress.bar("seeds") as tick:

        def measure(jobs: list[tuple[Task, str]]) -> None:
            session.verdicts.judge(jobs, progress=tick)

        seed_archive(
            tasks,
            session.folder.archive,
            measure,
            device=session.device,
            have=available_needs(),
            seeding=seeding,
            written=canonical if session.settings.prompt.style == "canonical" else str,
        )
    programs: list[int] = []
    buckets: list[int] = []
    for task in tasks:
        known = distinct(scored(session.folder.archive.variants(task.id), task_source=task.source))
        programs.append(len(known))
        buckets.append(len({bucket_of(one.speedup, settings.width) for one in known}))
    enough = sum(
        have >= seeding.programs and filled >= seeding.buckets for have, filled in zip(programs, buckets, strict=True)
    )
    session.folder.metrics.append({"event": "seeds", "programs": programs, "buckets": buckets, "enough": enough})
    session.progress.line(
        f"seeds: {sum(programs)} programs of {len(tasks)} tasks; {enough} tasks have {seeding.programs} in "
        f"{seeding.buckets} buckets, {sum(count >= 2 for count in buckets)} have two buckets to contrast"
    )
