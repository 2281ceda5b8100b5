"""Forks: new runs that begin where a stage or the seeds of another run ended, to compare what follows.

Arms of stage 3 that fork from the same seeds show the same programs with the same scores at first, and measure none
of them again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from cudal1_env import Archive

from cudal1_agent.config import differences, with_flags
from cudal1_agent.errors import RunError
from cudal1_agent.run.files import write_aside
from cudal1_agent.run.folder import (
    ARCHIVE,
    CONFIG,
    METRICS,
    Mark,
    RunFolder,
    check_protocol,
    read_mark,
    read_settings,
    stage_model,
)
from cudal1_agent.run.learnt import LEARNT
from cudal1_agent.run.machine import MACHINE
from cudal1_agent.run.metrics import Metrics
from cudal1_agent.settings import STAGES, Settings, StageName

FREE = ("seed", "stages", "contrast.", "evaluation.", "prompt.exemplars", "judge.", "judge_url", "policy.", "report_to")
"""Settings in which every fork may differ from its origin: no phase that can be copied depends on them."""
FIXED_BY_SEEDS = ("contrast.tasks:", "contrast.seed_", "contrast.width:")
"""Settings that seeds depend on."""
ForkPoint = StageName | Literal["seeds"]
"""What a run can fork after."""
POINTS: tuple[ForkPoint, ...] = (*STAGES, "seeds")


def forked_settings(origin: Path, flags: Mapping[str, Any]) -> Settings:
    """Return the settings of a fork: the origin's with some changed, and with stage 3.

    Raises:
        RunError: There is no such run.
        ConfigError: A value is invalid.
    """
    stored = read_settings(origin)
    stages = tuple(stage for stage in STAGES if stage in (*stored.stages, "contrast"))
    return with_flags(stored, {"stages": stages, **flags})


def split_origin(text: str) -> tuple[Path, ForkPoint]:
    """Return run directory and fork point of a text like `runs/one@self_train`.

    Raises:
        RunError: The text has another form.

    >>> split_origin("runs/one@self_train")
    (PosixPath('runs/one'), 'self_train')
    """
    run, _, name = text.rpartition("@")
    for point in POINTS:
        if run and name == point:
            return Path(run), point
    raise RunError(f"--from is {text!r}; write RUN@STAGE, with one of the stages {', '.join(STAGES)}, or RUN@seeds")


def last_phase(point: ForkPoint) -> str:
    """Return the name of the last phase that a fork copies."""
    return "seeds" if point == "seeds" else f"{point}.table"


def check_fork(origin: Path, point: ForkPoint, settings: Settings) -> Mark:
    """Return the mark after a run's stage or seeds, from which a run with these settings can fork.

    Args:
        origin: Directory of the other run.
        point: A finished stage of it, or its seeds.
        settings: Settings of the new run.

    Raises:
        RunError: That is not finished, or the settings differ in what the finished phases depend on.
    """
    mark = read_mark(origin / "marks" / f"{last_phase(point)}.json")
    if mark is None:
        raise RunError(
            f"{point} of {origin} is not finished, so there is nothing to fork from; finish it with: "
            f"cudal1-agent train --run-dir {origin} --resume"
        )
    check_protocol(origin)
    kept = FIXED_BY_SEEDS if point == "seeds" else ()
    free = (*FREE, "self_train.") if point == "sft" else FREE
    lines = differences(read_settings(origin), settings)
    fixed = [line for line in lines if line.startswith(kept) or not line.startswith(free)]
    if fixed:
        raise RunError(
            f"a fork of {origin}@{point} keeps the settings that its stages depend on ({'; '.join(fixed)}); "
            "leave them out"
        )
    return mark


def fork(origin: Path, point: ForkPoint, path: Path, settings: Settings, names: Sequence[str]) -> None:
    """Make a run directory in the state of another run after a stage or its seeds.

    The last model until then is copied, with metrics and archive as they were then. The origin is not changed.

    Args:
        origin: Directory of the other run.
        point: A finished stage of it, or its seeds.
        path: The new run directory.
        settings: Settings of the new run.
        names: Names of the new run's phases, in order.

    Raises:
        RunError: That is not finished, or the settings differ in what the finished phases depend on.
    """
    mark, stored = check_fork(origin, point, settings), read_settings(origin)
    copied = names[: names.index(last_phase(point)) + 1]
    done = [name for name in copied if (origin / "marks" / f"{name}.json").is_file()]
    finished: list[StageName] = [stage for stage in STAGES if stage in stored.stages and f"{stage}.table" in done]
    if not finished:
        raise RunError(f"the seeds of {origin} come before its first stage; fork from one of its stages instead")
    stage = finished[-1]
    model = stage_model(origin, stage, stored)
    with RunFolder.begin(path, settings):
        pass
    # The settings are written last, so that a killed fork is not a run.
    (path / CONFIG).unlink()
    shutil.copytree(model, stage_model(path, stage, settings), dirs_exist_ok=True)
    shutil.copyfile(origin / METRICS, path / METRICS)
    metrics = Metrics(path / METRICS)
    metrics.truncate_to(mark.metrics_bytes)
    metrics.close()
    _copy_archive(origin / ARCHIVE, path / ARCHIVE, mark)
    for name in (MACHINE, LEARNT):
        if (origin / name).is_file():
            shutil.copyfile(origin / name, path / name)
    for name in done:
        write_aside(path / "marks" / f"{name}.json", mark.model_dump_json())
    write_aside(path / CONFIG, settings.model_dump_json(indent=2) + "\n")


def _copy_archive(origin: Path, path: Path, mark: Mark) -> None:
    with Archive(origin) as old, Archive(path) as new:
        new.add_all(old.evaluations()[: mark.archive_position])
        if new.position() != mark.archive_position:
            raise RunError(
                f"the archive {origin} has {new.position()} evaluations up to the end of the stage, expected "
                f"{mark.archive_position}; it is not the one that the run wrote"
            )
