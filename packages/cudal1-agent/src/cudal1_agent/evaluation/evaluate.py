"""Evaluation of a policy: after each stage of a run, and by `cudal1-agent evaluate` for any run or model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudal1_data import Task
from cudal1_data.dedup.duplicates import near_duplicates
from cudal1_data.suggest import did_you_mean
from cudal1_env import Archive
from cudal1_env.evaluator import EachEvaluator
from cudal1_env.records import Precision
from cudal1_env.stats import paired_change

from cudal1_agent.config import load_settings, merged, read_configs, with_flags
from cudal1_agent.data.tasks import GROUPS, HELD_OUT_TASKS, TRAIN, tasks_of
from cudal1_agent.errors import RunError
from cudal1_agent.evaluation.assessment import Assessed, assess, prompts_for, table_record
from cudal1_agent.evaluation.tables import (
    Row,
    change_text,
    contamination_notes,
    family_rows,
    rows_of,
    stage_table,
    with_failures,
)
from cudal1_agent.policies.embedded import is_embedded
from cudal1_agent.policies.make import make_policy
from cudal1_agent.policies.prompting import prompt_builder
from cudal1_agent.progress import Progress, quiet_libraries
from cudal1_agent.run.checkpoints import Checkpoint
from cudal1_agent.run.folder import (
    ARCHIVE,
    METRICS,
    TRAINED_ON_TEST,
    is_run,
    read_corpus_note,
    read_mark,
    read_settings,
    stage_model,
)
from cudal1_agent.run.judge import close_judge, make_judge, program_device, stays_on_cpu
from cudal1_agent.run.learnt import Learnt
from cudal1_agent.run.machine import machine_key, verdicts_floor
from cudal1_agent.run.metrics import Record, read_metrics
from cudal1_agent.run.session import Session
from cudal1_agent.run.verdicts import Verdicts
from cudal1_agent.settings import STAGES, Settings, StageName


@dataclass(frozen=True)
class Evaluated:
    """The result of an evaluation: the judged answers, and which tasks the model was trained on."""

    groups: dict[str, list[Assessed]]
    """The judged answers of each task, by group."""
    seen: dict[str, str]
    """Tasks with near-duplicates in the run's training, and the training task."""
    trained_on_test: bool
    """Whether there are such tasks, or the run was trained on other test data."""
    learnt: Set[str] = frozenset()
    """Skeletons that the model was trained on, if it is a run's."""
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tasks that cannot be judged on this machine, with the reason; the tables leave them out."""

    def record(self, target: str) -> Record:
        """Return the result as one JSON object.

        Args:
            target: What was evaluated.
        """
        marks: Record = {"trained_on_test": True} if self.trained_on_test else {}
        return {
            "target": target,
            **({**marks, "seen": self.seen} if marks else {}),
            **({"refused": dict(self.refused)} if self.refused else {}),
            "table": {group: table_record(found, self.learnt) | marks for group, found in self.groups.items()},
            "answers": [
                answer_record("evaluate", group, one) | marks for group, found in self.groups.items() for one in found
            ],
        }

    def text(self, name: str) -> str:
        """Return the table, with notes on test data in training.

        Args:
            name: Name of the target in the table.
        """
        records = [
            {"stage": name, "group": group, **table_record(found, self.learnt)} for group, found in self.groups.items()
        ]
        table = stage_table([row for one in records for row in (*rows_of(one), *family_rows(one))])
        lines = contamination_notes(
            [{"group": group, "trained_on_test": self.trained_on_test} for group in self.groups], GROUPS
        )
        if self.seen:
            lines.append("trained on near-duplicates: " + ", ".join(f"{task} ({by})" for task, by in self.seen.items()))
        lines += [f"{task} is left out: {why}" for task, why in self.refused.items()]
        return "\n".join([table, *lines])


def tabulate(
    session: Session, _: Checkpoint | None, *, stage: StageName, model: str | Path, before: StageName | None
) -> None:
    """Evaluate the model of a stage, and write answers, table and change into the metrics.

    Args:
        session: The run.
        stage: The stage.
        model: Its model.
        before: The stage before it, for the change between the two on training tasks.
    """
    settings = session.settings
    earlier = answers_of(read_metrics(session.folder.metrics.path), before) if before is not None else {}
    with session.progress.bar(f"{stage}.table: answers") as tick:
        policy = session.policy(model, tick)
        results = assess(
            policy,
            session.tasks.groups,
            prompts_for(session.prompts(model), settings, session.folder.archive),
            session.verdicts,
            settings.evaluation,
            seed=settings.seed,
            progress=session.progress,
            # Measured anew, because the policy was selected on earlier verdicts.
            after=session.began.archive_position,
        )
        policy.close()
    rows: list[Row] = []
    learnt = Learnt(session.folder.path).skeletons
    for group, assessed in results.items():
        for one in assessed:
            session.folder.metrics.append(answer_record(stage, group, one))
        figures = table_record(assessed, learnt)
        overlaps = {
            task.id: task.overlaps
            for task in session.tasks.groups[group]
            if task.overlaps is not None and not _is_kernelbenchs(task)
        }
        record: Record = {"event": "table", "stage": stage, "group": group, **figures, "overlaps": overlaps}
        if refused := refused_of(session.tasks.groups[group], session.verdicts):
            record["refused"] = refused
        session.folder.metrics.append(record)
        rows += rows_of(record)
    for line in stage_table(rows).splitlines():
        session.progress.line(line)
    if before is not None:
        tasks = [one.task for one in results[TRAIN]]
        old, new = [earlier.get(task) for task in tasks], [one.speedup for one in results[TRAIN]]
        change, whole = paired_change(old, new), paired_change(with_failures(old), with_failures(new))
        session.folder.metrics.append(
            {
                "event": "change",
                "stage": stage,
                "before": before,
                "group": TRAIN,
                **change.model_dump(),
                "with_failures": whole.model_dump(),
            }
        )
        session.progress.line(change_text(before, stage, GROUPS[TRAIN], change, whole))


def _is_kernelbenchs(task: Task) -> bool:
    """Return whether a task is the one that it overlaps, in another form of KernelBench."""
    name = task.id.partition("@")[0].partition("/")[2]
    return task.overlaps is not None and name == task.overlaps.partition("/")[2]


def refused_of(tasks: Sequence[Task], verdicts: Verdicts) -> dict[str, str]:
    """Return those of the tasks that could not be judged, with the reason."""
    return {task.id: verdicts.refused[task.source] for task in tasks if task.source in verdicts.refused}


def answer_record(stage: str, group: str, one: Assessed) -> Record:
    """Return the line of metrics for one evaluated task."""
    speedup = one.best.speedup if one.best.correct else None
    return {
        "event": "answer",
        "stage": stage,
        "group": group,
        "task": one.task,
        "status": one.best.status.value,
        "speedup": speedup.model_dump() if speedup is not None else None,
        "source_sha256": one.best.source_sha256,
        "form": one.form,
        "answers": one.counts[0],
        "correct": one.counts[1],
    }


def answers_of(records: list[Record], stage: str) -> dict[str, float | None]:
    """Return the speedup of each training task after a stage, None if no answer was correct."""
    return {
        record["task"]: record["speedup"]["point"] if record["speedup"] else None
        for record in records
        if record["event"] == "answer" and record["stage"] == stage and record["group"] == TRAIN
    }


def evaluate_model(
    target: str,
    settings: Settings,
    *,
    precision: Precision = "training",
    evaluator: EachEvaluator | None = None,
    out: Path | None = None,
) -> Evaluated:
    """Evaluate the last model of a run, or any model, on the suite that the settings name.

    Args:
        target: Run directory, RUN@STAGE for the model of one of its stages, folder of a model, or hub name.
        settings: Settings of the evaluation; see `settings_for`.
        precision: How narrow intervals must be; `correct` does not time programs, and judges many at a time.
        evaluator: Judges answers by the audits that it has; None makes the judge that the settings name, with the
            suite's audit.
        out: Folder that keeps answers and verdicts; verdicts in it from this machine are not measured again. None
            keeps none. Exemplars come from the run's archive if the target is a run, else from here.

    Returns:
        The judged answers of each task, and which tasks the run was trained on.

    Raises:
        RunError: The run has no finished stage.
        PolicyError: There is no such model.
    """
    progress = Progress()
    device = program_device(settings)
    tasks = tasks_of(settings, device, training=False, notify=progress.line)
    if some := [
        f"{len(group)} of {tasks.available[name]} {GROUPS[name]}"
        for name, group in tasks.groups.items()
        if len(group) < tasks.available[name]
    ]:
        progress.line(f"evaluating {', '.join(some)}; choose others under [evaluation] in a file for --config")
    model: str | Path = target
    seen: dict[str, str] = {}
    marked = False
    run, stage = run_of(target)
    if run is not None:
        model = last_model(run, stage)
        trained = tasks_of(read_settings(run), device, notify=progress.line).train
        training = (*trained, *corpus_tasks(run))
        same = near_duplicates(training, tasks.groups[HELD_OUT_TASKS], notify=progress.line)
        seen = {one.test: name for name, one in same.items()}
        marked = any(record.get("trained_on_test") for record in read_metrics(run / METRICS))
    quiet_libraries()
    marked = marked or bool(seen)
    kept = Archive(None if out is None else out / ARCHIVE)
    floor = 0 if out is None else verdicts_floor(out, machine_key(device), kept.position())
    kept.marks = TRAINED_ON_TEST if marked else ()
    judge = None
    if evaluator is None:
        evaluator = judge = make_judge(settings)
    try:
        with progress.bar("answers") as tick, ExitStack() as opened:
            shown = kept if run is None else opened.enter_context(Archive(run / ARCHIVE))
            policy = make_policy(model, settings.policy, use_cpu=stays_on_cpu(settings), progress=tick)
            verdicts = Verdicts(evaluator, kept, reuse=settings.evaluation.reuse, floor=floor)
            groups = assess(
                policy,
                tasks.groups,
                prompts_for(prompt_builder(model, settings.prompt, device), settings, shown),
                verdicts,
                settings.evaluation,
                seed=settings.seed,
                progress=progress,
                precision=precision,
            )
            learnt = Learnt(run).skeletons if run is not None else frozenset[str]()
            refused = refused_of([task for group in tasks.groups.values() for task in group], verdicts)
            return Evaluated(groups, seen, trained_on_test=marked, learnt=learnt, refused=refused)
    finally:
        if judge is not None:
            close_judge(judge, kept)
        kept.close()


def corpus_tasks(run: Path) -> list[Task]:
    """Return the tasks of the corpus that a run was trained on, as near-duplicate detection needs them."""
    note = read_corpus_note(run)
    if note is None:
        return []
    found = note.kernelbench
    return [
        Task(id=name, source="", name=name, level=1, origin="corpus", overlaps=found.get(name)) for name in note.tasks
    ]


def run_of(target: str) -> tuple[Path | None, StageName | None]:
    """Return the run directory that a target names, and the stage if it is RUN@STAGE; None if it is a model.

    Raises:
        RunError: The stage is unknown.

    >>> run_of("HuggingFaceTB/SmolLM2-135M-Instruct")
    (None, None)
    """
    path, at, name = target.rpartition("@")
    if at and is_run(Path(path)):
        for stage in STAGES:
            if name == stage:
                return Path(path), stage
        raise RunError(f"{target}: unknown stage {name!r}; {did_you_mean(name, STAGES)}")
    return (Path(target), None) if is_run(Path(target)) else (None, None)


def settings_for(target: str, flags: Mapping[str, Any], config: Sequence[Path] = ()) -> Settings:
    """Return the settings of an evaluation: the run's, or the defaults for a model, overridden by files, then by flags.

    Raises:
        ConfigError: A file cannot be read, or a value is invalid.
    """
    run, _ = run_of(target)
    if run is not None:
        return with_flags(read_settings(run), merged(read_configs(config), flags))
    return load_settings(config, {**flags, "model": None if is_embedded(target) else target})


def finished_stage(run: Path, settings: Settings, wanted: StageName | None = None) -> StageName | None:
    """Return the last finished stage of a run, or the wanted one if it is finished; None if there is none."""
    for name in reversed(settings.stages):
        if wanted in (None, name) and read_mark(run / "marks" / f"{name}.table.json") is not None:
            return name
    return None


def last_model(run: Path, stage: StageName | None = None) -> Path:
    """Return the model of the last finished stage of a run, or of one of its stages.

    Raises:
        RunError: No stage is finished, or that stage is not.
    """
    settings = read_settings(run)
    if (found := finished_stage(run, settings, stage)) is not None:
        return stage_model(run, found, settings)
    what = "no finished stage" if stage is None else f"the stage {stage} is not finished"
    raise RunError(f"{what} in the run {run}; resume it with: cudal1-agent train --run-dir {run} --resume")
