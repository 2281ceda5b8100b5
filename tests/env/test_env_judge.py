"""The environment with this machine's judge: a few fixed cases from text to reward, and what is left behind."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
from cudal1_data import load_suite
from cudal1_env import CudaOptEnv
from cudal1_env.archive import Archive
from cudal1_env.gate import AuditReport, TaskAudit, reference_sha256
from cudal1_env.judge.measure import record
from cudal1_env.judge.measure.case import Built
from cudal1_env.judge.measure.record import Seen, Verdict
from cudal1_env.judge.measure.timing.interference import Alone
from cudal1_env.judge.measure.timing.overhead import Overhead
from cudal1_env.judge.measure.timing.trial import TrialResult
from cudal1_env.judge.measure.timing.trials import Trials
from cudal1_env.judge.oracle.pool import Pool
from cudal1_env.records import Evaluation, Speedup
from cudal1_env.reward import reward_of
from cudal1_env.stats import TrialSamples
from doubles.interrupts import interrupted
from doubles.judges import own_zygotes
from gymnasium.utils.env_checker import check_env
from task_programs import candidate, reference

FAST = """\
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a[:, None] * b
"""
WRONG = FAST.replace("a[:, None] * b", "a[:, None] + b")
TASK = {"task": "starter/diag_matmul"}


@pytest.fixture(autouse=True)
def own() -> Iterator[None]:
    """Zygotes end with their judge: these tests ask what is left behind."""
    with own_zygotes():
        yield


def children() -> set[int]:
    """Process ids of our children, zombies too."""
    me = Path(f"/proc/{os.getpid()}/task")
    return {int(pid) for thread in me.iterdir() for pid in (thread / "children").read_text().split()}


def test_from_text_to_reward_and_nothing_left_behind(tmp_path: Path) -> None:
    before = children()
    path = tmp_path / "archive.sqlite"
    with contextlib.closing(CudaOptEnv(attempts=3, archive=path)) as env:
        assert children() == before, "expected nothing to start before the first step"
        env.reset(seed=0, options=TASK)
        observation, earned, _, _, info = env.step(f"## Code\n```python\n{FAST}```\n")
        assert info["status"] == "CORRECT"
        # How fast that is belongs to benchmarks: a machine that is busy enough shows any number.
        assert info["speedup_low"] <= info["speedup"] <= info["speedup_high"]
        assert [one["code"] for one in observation["exemplars"]] == [FAST]
        _, reward, _, _, info = env.step(WRONG)
        assert (info["status"], reward) == ("WRONG_OUTPUT", 0.0)
        _, reward, terminated, _, info = env.step("class ModelNew(")
        assert (info["status"], reward, terminated) == ("SYNTAX_ERROR", 0.0, True)
    assert children() == before

    with Archive(path) as archive:
        right, wrong, _ = archive.evaluations()
    assert earned == reward_of(right) > 0
    for judged in (right, wrong):
        # Once the judge is gone its secrets are published.
        assert judged.seed is not None
        assert hashlib.sha256(bytes.fromhex(judged.seed)).hexdigest() == judged.seed_commitment


def test_a_forked_child_that_closes_its_copy_leaves_the_judge_alone() -> None:
    with contextlib.closing(CudaOptEnv(attempts=2, precision="correct")) as env:
        env.reset(seed=0, options=TASK)
        env.step(FAST)
        oracles = children()
        child = os.fork()
        if child == 0:
            env.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert children() == oracles
        assert env.step(FAST)[4]["status"] == "CORRECT"


def test_an_interrupt_ends_a_step_at_once() -> None:
    with contextlib.closing(CudaOptEnv(device="cpu", precision="correct", attempts=2)) as env:
        env.reset(seed=0, options=TASK)
        env.step("class ModelNew(")  # starts what a verdict needs
        with interrupted(3.0, within_s=20.0):
            env.step(f"import time\ntime.sleep(60)\n{FAST}")


def test_environments_of_a_process_are_limited_by_their_own_audits_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    samples = TrialSamples((40.0, 40.0), (10.0, 10.0))
    trial = TrialResult(samples, Overhead(0.1, 0.1, 0.01), (40.0, 40.0), Alone((0.0, 0.0), (0.0, 0.0)), 1.0)

    def measured(_: Trials, built: Built, pool: Pool) -> Verdict:
        return record.measured(built, Seen(trials=[trial]), Speedup(low=3.9, point=4.0, high=4.1), 3.9)

    monkeypatch.setattr(Trials, "measure", measured)
    rows = reference("return torch.stack([row.sum() for row in x[0]])", "[torch.randn(64, 16)]")
    (tmp_path / "rows.py").write_text(rows.source)
    tasks = load_suite(tmp_path, device="cpu")
    entry = TaskAudit(
        name=tasks[0].id, sha256=reference_sha256(tasks[0]), verdict="survivors", survivors=("zeros",), sets=12
    )
    report = AuditReport(suite="rows", device="cpu", max_sets=12, tasks=(entry,))
    (tmp_path / "audit.json").write_text(report.model_dump_json())
    found: list[tuple[float, Evaluation]] = []
    with contextlib.ExitStack() as opened:
        for audit in ("auto", None, "auto"):
            env = opened.enter_context(contextlib.closing(CudaOptEnv(tasks, device="cpu", split=None, audit=audit)))
            env.reset()
            _, paid, _, _, info = env.step(candidate("return x[0].sum(1)"))
            found.append((paid, info["evaluation"]))
    for paid, limited in (found[0], found[2]):
        assert (paid, limited.rewarded_low) == (1.0, 1.0)
        assert "an audit found incorrect programs that are accepted: zeros" in limited.message
    paid, free = found[1]
    assert paid == free.rewarded_low
    assert paid > 3.0
    assert "audit" not in free.message


def test_check_env_with_the_real_judge() -> None:
    env = gymnasium.make("CudaL1-v0", attempts=2)
    check_env(env.unwrapped)
    env.close()


@pytest.mark.slow
def test_the_random_agent_imports_gymnasium_alone_and_plays(repository: Path) -> None:
    script = repository / "examples" / "random_agent.py"
    tree = ast.parse(script.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names == {"argparse", "random", "re", "gymnasium"}
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), "--episodes", "2", "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + 2 * 2 + 1
    for line in lines[1:-1]:
        _, _, submitted, status, _, reward = line.split()
        # Beside whatever else a machine does, what is right may be late, or slow the reference once too often. Other
        # tests look at verdicts; here rewards follow them.
        allowed = ("RUNTIME_ERROR",) if submitted == "broken" else ("CORRECT", "UNSTABLE", "TAMPERING", "TIMEOUT")
        assert status in allowed, done.stdout
        assert (float(reward) > 0.0) == (status == "CORRECT"), done.stdout
