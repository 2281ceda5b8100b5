"""Champions: a run's fastest programs, confirmed before they are reported.

The best of many measured programs is overestimated, because it was also the luckiest. So champions are measured again
at `report` precision, in new processes and on inputs on which no program was chosen.
"""

from __future__ import annotations

from cudal1_agent.run.checkpoints import Checkpoint
from cudal1_agent.run.session import Session


def confirm(session: Session, _: Checkpoint | None) -> None:
    """Measure a run's fastest programs again, and write the results into the metrics.

    Args:
        session: The run.
        _: Unused: an interrupted phase finds the verdicts that it has already made.
    """
    archive, chosen_until = session.folder.archive, session.began.archive_position
    tasks = {task.id: task for group in (session.tasks.train, *session.tasks.groups.values()) for task in group}
    found = [(task, best) for task in tasks.values() if (best := archive.best(task.id, until=chosen_until)) is not None]
    found = [(task, best) for task, best in found if best.task_source == task.source]
    found.sort(key=lambda pair: (-(pair[1].counted_low or 0.0), pair[0].id))
    champions = found[: session.settings.evaluation.champions]
    session.renew_inputs()
    with session.progress.bar("champions") as tick:
        confirmed = session.verdicts.judge(
            [(task, best.source) for task, best in champions], precision="report", after=chosen_until, progress=tick
        )
    for (task, best), again in zip(champions, confirmed, strict=True):
        if again is None:
            continue
        speedup = again.speedup if again.correct else None
        assert best.speedup is not None
        session.folder.metrics.append(
            {
                "event": "champion",
                "task": task.id,
                "source_sha256": best.source_sha256,
                "chosen": best.speedup.model_dump(),
                "status": again.status.value,
                "confirmed": speedup.model_dump() if speedup is not None else None,
            }
        )
        text = again.status.value if speedup is None else f"{speedup.low:.2f} to {speedup.high:.2f} x"
        session.progress.line(f"champion of {task.id}: chosen at {best.speedup.point:.2f} x, confirmed {text}")
