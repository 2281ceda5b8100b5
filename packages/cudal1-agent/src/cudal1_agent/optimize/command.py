"""The command `cudal1-agent optimize`: a faster program for a user's module."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from cudal1_data.commandline import NO, OK, STATED_DEFAULT, TIME_IS_UP

from cudal1_agent.errors import OptimizeError, TimeIsUpError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudal1_data import Device

    from cudal1_agent.optimize.budget import Budget
    from cudal1_agent.optimize.record import OptimizeRecord
    from cudal1_agent.optimize.sources import Answers
    from cudal1_agent.optimize.target import Target


@dataclass(frozen=True)
class Effort:
    """Limits of time and candidates."""

    budget: str = "10m"
    """Time for everything, such as 90s, 10m or 1h; work that runs when it is over is interrupted."""
    candidates: int = 64
    """Maximum number of programs that are judged, including those of an earlier command in the folder."""


@dataclass(frozen=True)
class Policy:
    """Policy to ask in addition to the templates."""

    url: str | None = None
    """Also ask a model at this address, which includes the version (http://localhost:8000/v1)."""
    model: str | None = None
    """Name of the model at --url."""
    run_dir: Annotated[Path | None, tyro.conf.arg(name="run")] = None
    """Also ask the policy of a run of `cudal1-agent train`."""


@dataclass(frozen=True)
class Optimize:
    """Search for a faster program for your module, confirm it, and write a drop-in with the original as fallback.

    FILE.py defines an nn.Module, example_inputs() that returns the arguments of forward, and init_inputs() if the
    constructor takes any; or it has KernelBench's form. Exit code 0: a drop-in was written. 1: no program was confirmed
    to be faster, so none was written. 75: the time was over before that was known.

    Example: cudal1-agent optimize examples/optimize/focal_loss.py --budget 5m
    """

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
    """FILE.py, or FILE.py:Class where it defines several modules."""
    out: Annotated[Path | None, STATED_DEFAULT] = None
    """Folder to write, named like a package (default: optimized/NAME). The same command continues its search."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where programs run."""
    json: bool = False
    """Print the record as JSON."""
    effort: Annotated[Effort, tyro.conf.OmitArgPrefixes] = field(default_factory=Effort)
    """Limits of time and candidates."""
    policy: Annotated[Policy, tyro.conf.OmitArgPrefixes] = field(default_factory=Policy)
    """Policy to ask in addition to the templates."""

    def saved(self) -> str:
        """Return what was saved and how to continue after Ctrl-C."""
        where = self.out or "optimized/NAME"
        return f"what was judged is in {where}, no drop-in was written, and the same command continues from there"

    def run(self) -> int:
        """Search, confirm, write, print."""
        from cudal1_env.hardware import resolve_device

        from cudal1_agent.optimize.budget import Budget
        from cudal1_agent.optimize.folder import default_folder
        from cudal1_agent.optimize.target import read_target
        from cudal1_agent.progress import Progress
        from cudal1_agent.run.deadline import seconds_of

        if self.effort.candidates < 1:
            raise OptimizeError(f"invalid --candidates {self.effort.candidates}: give 1 or more")
        budget = Budget(seconds_of(self.effort.budget, option="--budget"), self.effort.candidates)
        target = read_target(self.file)
        device = resolve_device(self.device)
        out = self.out or default_folder(target)
        try:
            record = self._searched(target, out, device, budget, Progress().line)
        except TimeIsUpError as error:
            print(f"cudal1-agent: {error}", file=sys.stderr)
            if self.json:
                print(json.dumps({"error": type(error).__name__, "message": str(error)}))
            return TIME_IS_UP
        print(record.model_dump_json() if self.json else _text(record, out))
        return {"faster": OK, "nothing_faster": NO, "out_of_time": TIME_IS_UP}[record.outcome]

    def _searched(
        self, target: Target, out: Path, device: Device, budget: Budget, say: Callable[[str], None]
    ) -> OptimizeRecord:
        from cudal1_agent.optimize.run import optimize

        answers = self._answers(device, budget)
        sources = ["templates"]
        if self.policy.url is not None:
            sources.append(f"endpoint {self.policy.model}")
        if self.policy.run_dir is not None:
            sources.append(f"run {self.policy.run_dir.name}")
        return optimize(target, out, device, budget, say, answers=answers, sources=tuple(sources))

    def _answers(self, device: Device, budget: Budget) -> Answers | None:
        """Return the policy to ask, None if templates alone are used.

        Raises:
            OptimizeError: The options contradict each other.
            RunError: There is no finished stage in the run.
        """
        from cudal1_agent.optimize.sources import ANSWER_TOKENS, ROUND, Answers, full_prompt

        if self.policy.url is not None and self.policy.run_dir is not None:
            raise OptimizeError("--url and --run exclude each other; name one policy")
        if (self.policy.url is None) != (self.policy.model is None):
            raise OptimizeError("--url and --model go together: an address, and the name of the model there")
        if self.policy.url is not None and self.policy.model is not None:
            from cudal1_agent.policies.openai import OpenAIPolicy

            policy = OpenAIPolicy(
                self.policy.model, url=self.policy.url, parallel=ROUND, timeout_s=max(1.0, budget.search_s), attempts=2
            )
            return Answers(policy, full_prompt(device), max_new_tokens=ANSWER_TOKENS)
        if self.policy.run_dir is None:
            return None
        from cudal1_agent.evaluation.evaluate import last_model
        from cudal1_agent.policies.make import make_policy
        from cudal1_agent.policies.prompting import prompt_builder
        from cudal1_agent.progress import quiet_libraries
        from cudal1_agent.run.folder import read_settings

        quiet_libraries()
        settings, model = read_settings(self.policy.run_dir), last_model(self.policy.run_dir)
        policy = make_policy(model, settings.policy, use_cpu=device == "cpu")
        return Answers(
            policy,
            prompt_builder(model, settings.prompt, device),
            max_new_tokens=settings.evaluation.max_new_tokens,
            seed=settings.seed,
        )


def _text(record: OptimizeRecord, out: Path) -> str:
    lines = [record.message]
    if record.winner is not None:
        lines.append(
            f"drop-in: {out} (from {out.name} import {record.name}, optimized); how to use it: {out}/report.md"
        )
    else:
        lines.append(f"report: {out}/report.md")
    lines += [f"{name} was not confirmed: {reason}" for name, reason in record.refuted.items()]
    return "\n".join([*lines, *record.notes])
