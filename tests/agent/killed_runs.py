"""Runs trainings in forked children and kills some of them; run by test_resume.py as a process of its own.

Everything heavy is imported once, here; each child inherits it. Usage: python killed_runs.py FOLDER SEED

A policy that learnt for a few steps writes no program, so stages 2 and 3 would have nothing to learn from. What it
sampled is turned into a whole answer with a program of its own, which the text alone decides; tokens and gradients
are the policy's.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from cudal1_agent.config import merged
from cudal1_agent.data.prompts import build_answer
from cudal1_agent.evaluation import champions, evaluate
from cudal1_agent.policies import Policy
from cudal1_agent.reporting import page
from cudal1_agent.run.checkpoints import Checkpoint
from cudal1_agent.run.session import Session
from cudal1_agent.settings import Settings
from cudal1_agent.stages import contrast, scoring, self_train, sft
from cudal1_agent.train import train
from datasets import Dataset
from doubles.training import PROGRAM, HashEvaluator, suite
from trl.trainer.sft_trainer import SFTTrainer

IMPORTED = (contrast, self_train, sft, champions, evaluate, Dataset, SFTTrainer, page)

STAGES = ("sft", "self_train", "contrast")
"""In which stages the kills fall, each at a line of the metrics drawn at random."""

SETTINGS = Settings.model_validate(
    merged(
        Settings().model_dump(),
        {
            "device": "cpu",
            "embedded": {"vocabulary": 400, "hidden": 64, "layers": 2, "heads": 2, "intermediate": 128, "context": 512},
            "sft": {"trl": {"max_steps": 14, "logging_steps": 2, "save_steps": 4}},
            "self_train": {
                "iterations": 2,
                "samples": 2,
                "trl": {"max_steps": 4, "logging_steps": 1, "save_steps": 2},
            },
            "contrast": {
                "trl": {
                    "mask_truncated_completions": False,
                    "max_steps": 5,
                    "per_device_train_batch_size": 8,
                    "num_generations": 4,
                    "max_completion_length": 64,
                    "save_steps": 2,
                }
            },
            "evaluation": {"max_new_tokens": 64},
        },
    )
)


def completed(text: str) -> str:
    """Return a whole answer whose program the text decides."""
    number = int(hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8], 16)
    return build_answer(
        "There is nothing to compare.", "Use plain PyTorch.", PROGRAM.format(expression=f"x + {number}")
    )


class Completing:
    """A policy whose texts become whole answers."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def sample(self, prompts: Sequence[str], n: int, **how: Any) -> list[list[str]]:
        return [[completed(text) for text in given] for given in self._policy.sample(prompts, n, **how)]

    def close(self) -> None:
        self._policy.close()


def collect(session: Session, checkpoint: Checkpoint | None, **how: Any) -> None:
    """Stage 2's sampling with a policy that completes its texts."""
    make = session.policy
    vars(session)["policy"] = lambda model, tick: Completing(make(model, tick))
    try:
        sampled(session, checkpoint, **how)
    finally:
        del vars(session)["policy"]


sampled, written = self_train.collect, scoring.text_of
self_train.collect = collect
scoring.text_of = lambda completion: completed(written(completion))


def child(run_dir: Path, *, resume: bool) -> int:
    """Start a training in a child of its own and return its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            train(None if resume else SETTINGS, run_dir, resume=resume, evaluator=HashEvaluator(), suite=suite())
            code = 0
        finally:
            traceback.print_exc()
            os._exit(code)
    return pid


def finished(pid: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        raise RuntimeError(f"a training ended with {code}")


def killed(pid: int, metrics: Path, size: int) -> bool:
    """Kill a training as soon as its metrics have some size; return whether it was still running."""
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if metrics.exists() and metrics.stat().st_size >= size:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return True
        time.sleep(0.002)
    return False


def place(metrics: Path, stage: str, rng: random.Random) -> int:
    """Return the size of the metrics after some line of a stage."""
    lines = metrics.read_bytes().splitlines(keepends=True)
    found = [number for number, line in enumerate(lines) if json.loads(line).get("stage") == stage]
    return sum(len(line) for line in lines[: rng.choice(found) + 1])


def main() -> None:
    """Run once undisturbed, then once for each stage, killed there and resumed."""
    folder, rng = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    torch.set_num_threads(1)
    finished(child(folder / "whole", resume=False))
    said: list[dict[str, object]] = []
    for stage in STAGES:
        run_dir = folder / stage
        size = place(folder / "whole" / "metrics.jsonl", stage, rng)
        was_killed = killed(child(run_dir, resume=False), run_dir / "metrics.jsonl", size)
        marks = sorted(path.stem for path in (run_dir / "marks").glob("*.json"))
        finished(child(run_dir, resume=True))
        said.append({"stage": stage, "killed": was_killed, "size": size, "marks": marks})
    (folder / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
