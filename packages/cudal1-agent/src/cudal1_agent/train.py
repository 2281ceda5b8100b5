"""A whole training run: all stages in order, resumable after a kill."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from cudal1_data import DataError, Device, Suite
from cudal1_env.errors import EnvError
from cudal1_env.evaluator import EachEvaluator

from cudal1_agent.data.selection import CorpusSelection, corpus_sha256, select_pairs
from cudal1_agent.data.stream import Place, streamed
from cudal1_agent.data.tasks import TaskSets, tasks_of
from cudal1_agent.errors import AgentError, RunError
from cudal1_agent.policies.prompting import prompt_builder
from cudal1_agent.preflight import Estimate, check_model, check_room, check_settings, embedded_shape, estimate, shape_of
from cudal1_agent.progress import Progress, quiet_libraries
from cudal1_agent.run.checkpoints import Checkpoint
from cudal1_agent.run.deadline import Deadline
from cudal1_agent.run.files import write_aside
from cudal1_agent.run.folder import CORPUS, METRICS, REPORT, RunFolder, read_corpus_note, stage_model
from cudal1_agent.run.fork import ForkPoint, check_fork, fork, last_phase
from cudal1_agent.run.judge import close_judge, make_judge, program_device, retire_inputs, stays_on_cpu
from cudal1_agent.run.machine import machine_key, verdicts_floor
from cudal1_agent.run.meter import PARTS
from cudal1_agent.run.metrics import read_metrics
from cudal1_agent.run.phases import Phase, run_phases
from cudal1_agent.run.session import Session
from cudal1_agent.run.verdicts import Verdicts
from cudal1_agent.settings import Settings, StageName

TOKENIZER_TASKS = 256
"""Number of a stream's tasks from whose programs the embedded model's tokenizer learns."""


def train(
    settings: Settings | None,
    run_dir: Path,
    *,
    resume: bool = False,
    origin: tuple[Path, ForkPoint] | None = None,
    seconds: float | None = None,
    evaluator: EachEvaluator | None = None,
    suite: Suite | None = None,
) -> Path:
    """Run all stages, or resume an interrupted run.

    Args:
        settings: Settings of the run. With `resume`, None takes those of the run, and other settings are refused.
        run_dir: The run directory.
        resume: Continue the run in `run_dir`.
        origin: Another run and a stage of it, or `seeds`: the run begins where that ended, with settings from
            `forked_settings`.
        seconds: Time limit, after which the run stops where it can be resumed; None trains to the end.
        evaluator: Judges answers by the audits that it has, and is not closed; None makes the judge that the settings
            name, with the suite's audit.
        suite: The tasks; None loads the suite that the settings name.

    Returns:
        `run_dir`.

    Raises:
        RunError: The run cannot be begun or resumed; the message says what to type.
        ConfigError: The settings cannot work.
        CorpusError: The suite or corpus has nothing to learn from, or it is test data.
        PolicyError: The model cannot be loaded.
        MachineError: The machine broke; resume later.
        TimeIsUpError: The time limit is reached.
    """
    progress = Progress()
    deadline = Deadline(seconds)
    with _opened(settings, run_dir, resume=resume, origin=origin, seconds=seconds) as folder:
        settings = folder.settings
        judge = None
        try:
            device = program_device(settings)
            tasks, selection = _checked_tasks(folder, device, suite, progress)
            if evaluator is None:
                evaluator = judge = make_judge(settings)
        except (AgentError, DataError, EnvError):
            if not resume and origin is None:
                folder.discard()
            raise
        try:
            session = Session(
                settings=settings,
                folder=folder,
                device=device,
                use_cpu=stays_on_cpu(settings),
                tasks=tasks,
                verdicts=Verdicts(
                    evaluator,
                    folder.archive,
                    reuse=settings.evaluation.reuse,
                    floor=verdicts_floor(run_dir, machine_key(device), folder.archive.position()),
                    notify=progress.line,
                ),
                progress=progress,
                selection=selection,
                deadline=deadline,
            )
            if judge is not None:
                session.renew_inputs = partial(retire_inputs, judge, folder.archive)
            run_phases(session, phases(settings, run_dir))
            # After the run is marked as finished, because the page says whether it is.
            write_report(session)
        finally:
            if judge is not None:
                close_judge(judge, folder.archive)
    return run_dir


def _opened(
    settings: Settings | None,
    run_dir: Path,
    *,
    resume: bool,
    origin: tuple[Path, ForkPoint] | None,
    seconds: float | None,
) -> RunFolder:
    """Return the folder of a new run, of a resumed one, or of a fork of another run."""
    if resume:
        check_time(run_dir, seconds)
        return RunFolder.resume(run_dir, settings)
    settings = settings or Settings()
    check_settings(settings, run_dir)
    if origin is None:
        return RunFolder.begin(run_dir, settings)
    fork(*origin, run_dir, settings, [phase.name for phase in phases(settings, run_dir)])
    return RunFolder.resume(run_dir, settings)


def _checked_tasks(
    folder: RunFolder, device: Device, suite: Suite | None, progress: Progress
) -> tuple[TaskSets, CorpusSelection | None]:
    """Return tasks and corpus of a run, after all checks that need neither judge nor training."""
    settings = folder.settings
    tasks = tasks_of(settings, device, suite=suite, notify=progress.line)
    for reason in tasks.broken:
        progress.line(f"left out: {reason}")
    if tasks.overlaps:
        progress.line(overlap_text(tasks))
    selection, on_test = select_corpus(folder, tasks, device)
    tasks = replace(tasks, trained_on_test=tasks.trained_on_test or on_test)
    quiet_libraries()
    model = next_model(settings, folder.path)
    needed = room_for(settings, folder.path, model, use_cpu=stays_on_cpu(settings))
    progress.line(needed.text())
    if model is not None:
        check_model(model, settings, tasks, prompt_builder(model, settings.prompt, device))
    check_stream(settings, tasks, device)
    return tasks, selection


def overlap_text(tasks: TaskSets) -> str:
    """Return how many tasks overlap the test, by kind of evidence, and whether they were left out."""
    counts = ", ".join(f"{count} by {why}" for why, count in tasks.overlaps.items())
    if not tasks.left_out:
        return f"trained on although the test has them too ({counts}); everything is marked trained_on_test"
    return f"left out of training, because the test has them too ({counts}): {', '.join(tasks.left_out)}"


def select_corpus(folder: RunFolder, tasks: TaskSets, device: Device) -> tuple[CorpusSelection | None, bool]:
    """Read the corpus that a run's stage 1 learns from, and note its hash in the run directory.

    Returns:
        The pairs that may be learnt, None if there is no corpus or stage 1 is finished; and whether any is test data.

    Raises:
        RunError: The file has changed since the run began.
        CorpusError: There is no file, or no pair in it may be learnt.
        DataError: The file is not a corpus.
    """
    settings = folder.settings
    path, noted = settings.sft.corpus, read_corpus_note(folder.path)
    if path is None or "sft" not in settings.stages:
        return None, False
    if noted is not None:
        if folder.marked("sft") is not None:
            return None, noted.trained_on_test
        if (found := corpus_sha256(path)) != noted.sha256:
            raise RunError(
                f"the corpus {path} has changed since the run {folder.path} began (SHA-256 {noted.sha256[:12]}..., now "
                f"{found[:12]}...); put the old one back, or begin a new run with another --run-dir"
            )
    selection = _selected(path, settings, tasks, device)
    if noted is None:
        write_aside(folder.path / CORPUS, selection.note().model_dump_json(indent=2) + "\n")
    return selection, bool(selection.kernelbench)


def _selected(path: Path, settings: Settings, tasks: TaskSets, device: Device) -> CorpusSelection:
    return select_pairs(
        path,
        settings.sft,
        device,
        held_out=tasks.held_out,
        sizes=tasks.held_out_sizes,
        train_on_test=settings.train_on_test,
    )


def next_model(settings: Settings, run_dir: Path) -> str | Path | None:
    """Return the model that a run goes on with, None if it makes a new one.

    A run whose stage is finished no longer needs the model that it began with, so it can go on without that one.
    """
    from cudal1_agent.evaluation.evaluate import finished_stage

    stage = finished_stage(run_dir, settings)
    return settings.model if stage is None or settings.model is None else stage_model(run_dir, stage, settings)


def room_for(settings: Settings, run_dir: Path, model: str | Path | None, *, use_cpu: bool) -> Estimate:
    """Return what a run needs, after checking that memory and disk suffice.

    Args:
        settings: Settings of the run.
        run_dir: Its directory.
        model: The model that it trains; None if it makes a new one.
        use_cpu: Whether it trains on the CPU.

    Raises:
        ConfigError: They do not.
        PolicyError: The model cannot be loaded.
    """
    shape = embedded_shape(settings.embedded) if model is None else shape_of(model)
    needed = estimate(shape, settings, use_cpu=use_cpu)
    check_room(needed, run_dir, use_cpu=use_cpu)
    return needed


def check_stream(settings: Settings, tasks: TaskSets, device: Device) -> None:
    """Check that the stream of stage 1, if there is one, yields a pair.

    Raises:
        ConfigError: `sft.stream` does not name a stream.
        CorpusError: The stream yields nothing.
        DataError: A family or an option is unknown.
    """
    from cudal1_agent.stages.sft import stream_of

    if settings.sft.stream is not None and "sft" in settings.stages:
        stream = stream_of(settings, tasks, device, "compact", settings.sft.stream)
        with closing(streamed(stream, Place(), tuple, workers=0)) as found:
            next(found)


def dry_run(settings: Settings, run_dir: Path, *, origin: tuple[Path, ForkPoint] | None = None) -> str:
    """Check all that can be checked before a run, and return what it needs as text.

    Args:
        settings: Settings of the run.
        run_dir: The run directory.
        origin: Another run and a stage of it, or `seeds`, from which the run would fork.

    Raises:
        RunError: The run cannot fork from there.
        ConfigError: The settings cannot work, or memory or disk do not suffice.
        PolicyError: The model cannot be loaded.
        CorpusError: There is nothing to train on.
        DataError: The corpus is no corpus.
    """
    quiet_libraries()
    check_settings(settings, run_dir)
    if origin is not None:
        check_fork(*origin, settings)
    device = program_device(settings)
    progress = Progress()
    tasks = tasks_of(settings, device, notify=progress.line)
    if tasks.overlaps:
        progress.line(overlap_text(tasks))
    model = next_model(settings, run_dir if origin is None else origin[0])
    needed = room_for(settings, run_dir, model, use_cpu=stays_on_cpu(settings))
    if model is not None:
        check_model(model, settings, tasks, prompt_builder(model, settings.prompt, device))
    check_stream(settings, tasks, device)
    names = [phase.name for phase in phases(settings, run_dir)]
    if origin is not None:
        names = names[names.index(last_phase(origin[1])) + 1 :]
    if settings.sft.corpus is not None and "sft" in names and read_corpus_note(run_dir) is None:
        _selected(settings.sft.corpus, settings, tasks, device)
    return f"{needed.text()}\ntraining tasks: {len(tasks.train)}\nphases: {', '.join(names)}"


def check_time(run_dir: Path, seconds: float | None) -> None:
    """Check that the time limit is longer than a run's last known step took.

    Raises:
        RunError: It is shorter.
    """
    path = run_dir / METRICS
    if seconds is None or not path.is_file():
        return
    steps = [record for record in read_metrics(path) if record["event"] == "time"][-2:]
    if len(steps) < 2 or steps[0]["stage"] != steps[1]["stage"]:
        return
    taken_s = sum(steps[1][f"{part}_s"] for part in PARTS) / max(steps[1]["step"] - steps[0]["step"], 1)
    if taken_s > seconds:
        raise RunError(
            f"a step of {steps[1]['stage']} took {taken_s:.0f} s in {run_dir}, so --for {seconds:.0f}s ends before "
            f"one; give it {2 * taken_s:.0f}s or more"
        )


def phases(settings: Settings, path: Path) -> list[Phase]:
    """Return the phases of a run, in order.

    Args:
        settings: Settings of the run.
        path: Its directory.
    """
    from cudal1_agent.evaluation.champions import confirm
    from cudal1_agent.evaluation.evaluate import tabulate
    from cudal1_agent.stages.seeds import seed

    todo: list[Phase] = []
    model: str | Path = settings.model or path / "model"
    if settings.model is None:
        todo.append(Phase("model", make_model))
    before: StageName | None = None
    seeds = Phase("seeds", seed)
    for stage in settings.stages:
        # If tables show exemplars, the seeds come before the first table.
        if seeds not in todo and (stage == "contrast" or settings.evaluation.exemplars):
            todo.append(seeds)
        todo += _training(stage, model, path / "stages" / stage, settings)
        model = stage_model(path, stage, settings)
        table = partial(tabulate, stage=stage, model=model, before=before)
        todo.append(Phase(f"{stage}.table", table, reads_archive=settings.evaluation.exemplars))
        before = stage
    return [*todo, Phase("champions", confirm)]


def _training(stage: StageName, model: str | Path, home: Path, settings: Settings) -> list[Phase]:
    """Return the phases that train a model in one stage."""
    from cudal1_agent.stages.contrast import run_contrast
    from cudal1_agent.stages.self_train import collect, learn
    from cudal1_agent.stages.sft import run_sft

    match stage:
        case "sft":
            return [Phase(stage, partial(run_sft, model=model, folder=home), home / "trainer")]
        case "contrast":
            run = partial(run_contrast, model=model, folder=home)
            return [Phase(stage, run, home / "trainer", reads_archive=True)]
        case "self_train":
            todo: list[Phase] = []
            for number in range(settings.self_train.iterations):
                place = home / str(number)
                asked = partial(collect, model=model, folder=place, iteration=number)
                studied = partial(learn, model=model, folder=place, iteration=number)
                todo.append(Phase(f"{stage}.{number}.answers", asked))
                todo.append(Phase(f"{stage}.{number}", studied, place / "trainer"))
                model = place / "model"
            return todo


def make_model(session: Session, _: Checkpoint | None) -> None:
    """Make the embedded model in the run directory."""
    from cudal1_agent.policies.embedded import make_embedded
    from cudal1_agent.stages.sft import stream_of

    selection = session.selection
    programs = selection.choose(session.settings.sft.max_per_task)[0] if selection is not None else []
    if session.settings.sft.stream is not None:
        style = "canonical" if session.settings.prompt.style == "canonical" else "compact"
        stream = stream_of(session.settings, session.tasks, session.device, style, session.settings.sft.stream)
        programs = [program for number in range(TOKENIZER_TASKS) for program in stream.programs(number)]
    make_embedded(
        session.folder.path / "model",
        session.tasks.train,
        session.settings.embedded,
        seed=session.settings.seed,
        device=session.device,
        programs=programs,
    )
    model = session.folder.path / "model"
    check_model(model, session.settings, session.tasks, session.prompts(model))


def write_report(session: Session) -> None:
    """Write the report into the run directory."""
    from cudal1_agent.reporting.page import report

    report(session.folder.path)
    session.progress.line(f"report: {session.folder.path / REPORT}")
