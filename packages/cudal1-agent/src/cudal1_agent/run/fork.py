"""Forks: new runs that begin where a stage of another run ended, to compare later stages under other settings."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
"""Settings in which a fork may differ from its origin: the copied phases do not depend on them."""


def forked_settings(origin: Path, flags: Mapping[str, Any]) -> Settings:
    """Return the settings of a fork: the origin's with some changed, and with stage 3.

    Raises:
        RunError: There is no such run.
        ConfigError: A value is invalid.
    """
    stored = read_settings(origin)
    stages = tuple(stage for stage in STAGES if stage in (*stored.stages, "contrast"))
    return with_flags(stored, {"stages": stages, **flags})


def split_origin(text: str) -> tuple[Path, StageName]:
    """Return run directory and stage of a text like `runs/one@self_train`.

    Raises:
        RunError: The text has another form.

    >>> split_origin("runs/one@self_train")
    (PosixPath('runs/one'), 'self_train')
    """
    run, _, name = text.rpartition("@")
    for stage in STAGES:
        if run and name == stage:
            return Path(run), stage
    raise RunError(f"--from is {text!r}; write RUN@STAGE, with one of the stages {', '.join(STAGES)}")


def check_fork(origin: Path, stage: StageName, settings: Settings) -> Mark:
    """Return the mark at the end of a run's stage, from which a run with these settings can fork.

    Args:
        origin: Directory of the other run.
        stage: A finished stage of it.
        settings: Settings of the new run.

    Raises:
        RunError: The stage is not finished, or the settings differ in what the finished phases depend on.
    """
    mark = read_mark(origin / "marks" / f"{stage}.table.json")
    if mark is None:
        raise RunError(
            f"the stage {stage} of {origin} is not finished, so there is nothing to fork from; finish it with: "
            f"cudal1-agent train --run-dir {origin} --resume"
        )
    check_protocol(origin)
    fixed = [line for line in differences(read_settings(origin), settings) if not line.startswith(FREE)]
    if fixed:
        raise RunError(
            f"a fork of {origin}@{stage} keeps the settings that its stages depend on ({'; '.join(fixed)}); "
            "leave them out"
        )
    return mark


def fork(origin: Path, stage: StageName, path: Path, settings: Settings, names: Sequence[str]) -> None:
    """Make a run directory in the state of another run at the end of a stage.

    The last model of the stage is copied, with metrics and archive as they were then. The origin is not changed.

    Args:
        origin: Directory of the other run.
        stage: A finished stage of it.
        path: The new run directory.
        settings: Settings of the new run.
        names: Names of the new run's phases, in order.

    Raises:
        RunError: The stage is not finished, or the settings differ in what the finished phases depend on.
    """
    mark, stored = check_fork(origin, stage, settings), read_settings(origin)
    done = [
        name for name in names[: names.index(f"{stage}.table") + 1] if (origin / "marks" / f"{name}.json").is_file()
    ]
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
