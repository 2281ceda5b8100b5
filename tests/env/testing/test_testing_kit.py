"""The testing kit: mutants and templates, and other evaluators under the same suite."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.device.tensors import Expected
from cudal1_env.judge.oracle.numerics import Answer, compare
from cudal1_env.mutants.programs import ANSWER_MUTANTS, MUTANTS
from cudal1_env.testing.child import ChildEvaluator
from cudal1_env.testing.programs import Program
from cudal1_env.testing.strategies import exploits, mutant_answers, mutants
from cudal1_env.testing.templates import TEMPLATES
from cudal1_env.testing.under_test import Case, Claim, JudgeUnderTest, Report, examine, suite
from hypothesis import given, settings
from hypothesis import strategies as st

MUTANT_CASES = suite("cpu", only=["correct", "mutant/", "template/"])


@pytest.mark.parametrize(("only", "words"), [(["nosuch"], "no program's name begins"), ("mutant/", "pass a list")])
def test_a_suite_of_no_program_is_an_error(only: list[str] | str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        suite("cpu", only=only)


def test_the_device_of_a_header_decides_where_a_program_runs() -> None:
    def on(header: dict[str, str]) -> list[bool]:
        return [Program(Path("h01_a.py"), header).runs_on(device) for device in ("cpu", "cuda")]

    assert on({}) == on({"device": "cpu"}) == [True, False]
    assert on({"device": "cuda"}) == [False, True]
    assert on({"device": "any"}) == [True, True]


# Mutants and templates


@pytest.fixture(scope="module")
def report() -> tuple[Report, dict[str, str]]:
    """Our own judge under mutants and templates, and what it said about each."""
    lines: list[str] = []
    with Judge(JudgeSettings(device="cpu")) as judge:
        found = examine(JudgeUnderTest(judge), MUTANT_CASES, margin=0.0, log=lines.append)
    return found, dict(line.split(": ", 1) for line in lines)


@pytest.mark.slow
def test_our_judge_is_sound_under_mutants_and_templates(report: tuple[Report, dict[str, str]]) -> None:
    assert report[0].cases == 1 + len(MUTANTS) + len(TEMPLATES)
    assert report[0].sound, report[0].text()


@pytest.mark.slow
def test_mutants_run_and_are_incorrect(report: tuple[Report, dict[str, str]]) -> None:
    for name in MUTANTS:
        assert report[1][f"mutant/{name}"].startswith("not correct (WRONG_OUTPUT"), report[1][f"mutant/{name}"]


@given(mutants() | exploits())
def test_drawn_mutants_are_python_after_the_program(mutation) -> None:
    program = "class ModelNew:\n    def forward(self, x):\n        return x\n"
    mutant = mutation.on(program)
    ast.parse(mutant)
    assert mutant.startswith(program.rstrip())
    assert mutant.rstrip().endswith("ModelNew.forward = _forward")


def answer_of(right: np.ndarray) -> Answer:
    """The judge's answer for an output whose reference errs by the last place."""
    flat = right.reshape(-1)
    limits = np.maximum(32.0 * np.abs(flat.astype(np.float32) - flat), 8 * 2.0**-23 * np.abs(flat))
    return Answer(np.arange(0), np.zeros(0), np.zeros(0), flat, limits, float(np.abs(right).max()))


@settings(max_examples=200)
@given(st.data(), st.integers(0, 2**32 - 1), st.sampled_from([(9,), (7, 3), (2, 5, 4)]), st.floats(1e-3, 1e3))
def test_the_comparison_refuses_every_mutant_of_an_answer(data, seed, shape, scale) -> None:
    rng = np.random.default_rng(seed)
    right, values, other = (scale * rng.standard_normal(shape) for _ in range(3))
    expected = Expected(shape, "float32", aliases=False)
    assert compare(right.astype(np.float32).reshape(-1), answer_of(right), expected, whole=True).correct
    mutant = data.draw(mutant_answers(right, values, other))
    assert not compare(mutant.astype(np.float32).reshape(-1), answer_of(right), expected, whole=True).correct


def test_answers_and_programs_have_the_same_mutants() -> None:
    assert set(ANSWER_MUTANTS) == set(MUTANTS)


@pytest.mark.slow
def test_without_hypothesis_only_the_strategies_are_missing() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import cudal1_env.testing.child, cudal1_env.testing.noise, cudal1_env.campaigns.redteam\n"
        "try:\n    import cudal1_env.testing.strategies\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "install cudal1-env[testing]" in done.stdout


# Other evaluators


class Gullible:
    """Believes everybody."""

    def judge(self, task: str, candidate: str, /) -> Claim:
        return Claim(correct=True, speedup=2.0)


class Stern:
    """Believes nobody."""

    def judge(self, task: str, candidate: str, /) -> Claim:
        return Claim(correct=False, message="no")


def test_a_report_names_rewarded_accepted_and_rejected_programs() -> None:
    cases = suite("cpu")
    wrong = {case.name for case in cases if not case.answers_correct}
    gullible = examine(Gullible(), cases)
    assert {finding.case for finding in gullible.rewarded} == {case.name for case in cases if not case.honest}
    assert {finding.case for finding in gullible.accepted} == wrong
    assert (gullible.sound, gullible.rejected) == (False, ())
    stern = examine(Stern(), cases)
    assert (stern.rewarded, stern.accepted) == ((), ())
    assert {finding.case for finding in stern.rejected} == {case.name for case in cases if case.honest}
    assert stern.text().splitlines()[-1].startswith(f"{len(cases)} programs: 0 attacks rewarded")


def test_an_impossible_speedup_is_a_reward_and_noise_is_none() -> None:
    case = Case("slow", "", "", "", honest=False, answers_correct=True)

    class Claims:
        def __init__(self, speedup: float | None) -> None:
            self.speedup = speedup

        def judge(self, task: str, candidate: str, /) -> Claim:
            return Claim(correct=True, speedup=self.speedup)

    assert [examine(Claims(one), [case]).sound for one in (1.04, None, 1.06, float("nan"), float("inf"))] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_harmful_programs_are_left_out_unless_asked_for() -> None:
    names, all_names = ({case.name for case in suite("cpu", harmful=harmful)} for harmful in (False, True))
    assert {"h44_fork_bomb", "h35_planted_startup", "h52_daemon"} <= all_names - names
    assert "h44_fork_bomb.honest" in names


class Naive:
    """Compares one call with a loose tolerance, in its own process, and times later calls on the same inputs."""

    def judge(self, task: str, candidate: str, /) -> Claim:
        import time

        import torch

        torch.manual_seed(0)
        reference, other = {}, {}
        exec(task, reference)
        exec(candidate, other)
        models = []
        for space, name in ((reference, "Model"), (other, "ModelNew")):
            torch.manual_seed(1)
            models.append(space[name](*space["get_init_inputs"]()))
        inputs = reference["get_inputs"]()
        with torch.no_grad():
            correct = torch.allclose(models[0](*inputs), models[1](*inputs), atol=1e-2, rtol=1e-2)
            times = []
            for model in models:
                for _ in range(5):
                    model(*inputs)
                began = time.perf_counter()
                for _ in range(10):
                    model(*inputs)
                times.append(time.perf_counter() - began)
        return Claim(correct=correct, speedup=times[0] / times[1])


def test_the_suite_finds_mistakes_of_a_naive_evaluator() -> None:
    paid = ("template/honest_first", "template/kept_by_shape")
    names = ("correct", *paid, "mutant/zeros", "mutant/half_precision")
    found = examine(Naive(), [case for case in MUTANT_CASES if case.name in names], margin=1.0)
    assert [finding.case for finding in found.rejected] == []
    assert {finding.case for finding in found.rewarded} >= set(paid)
    assert {finding.case for finding in found.accepted} == set(names) - {"correct", "mutant/zeros"}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('the evaluator broke')", "the process ended with 1 and no claim the evaluator broke"),
        ("import os; os._exit(0)", "the process ended with 0 and no claim"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "the process ended with -9 and no claim"),
        ("import time; time.sleep(60)", "no claim after 1 s"),
        ("import sys; open(sys.argv[3], 'w').write('{\"correct\": 7}')", "the process ended with 0 and no claim"),
    ],
)
def test_a_child_that_ends_without_a_claim_has_rejected(code: str, message: str) -> None:
    claim = ChildEvaluator([sys.executable, "-S", "-c", code], timeout_s=1.0).judge("task", "candidate")
    assert claim == Claim(correct=False, message=message)


def test_a_child_gets_both_texts_and_its_claim_is_read() -> None:
    code = (
        "import json, sys; task, candidate = (open(path).read() for path in sys.argv[1:3])\n"
        "json.dump({'correct': True, 'speedup': 'Infinity', 'message': task + candidate}, open(sys.argv[3], 'w'))"
    )
    claim = ChildEvaluator([sys.executable, "-S", "-c", code]).judge("one ", "two")
    assert claim == Claim(correct=True, speedup=float("inf"), message="one two")


# The example


def example(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = repository / "examples" / "kernelbench_under_test.py"
    return subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_example_puts_our_judge_under_the_suite(repository: Path) -> None:
    done = example(repository, "--evaluator", "cudal1", "--device", "cpu", "--only", "h14_nan", "mutant/zeros")
    assert done.returncode == 0, done.stderr
    summary = "3 programs: 0 attacks rewarded, 0 incorrect programs accepted, 0 honest ones rejected"
    assert done.stdout.splitlines() == [summary]


@pytest.mark.slow
def test_the_example_says_in_one_sentence_that_an_evaluator_is_missing(repository: Path) -> None:
    if importlib.util.find_spec("kernelbench") is not None:
        pytest.skip("kernelbench is installed here")
    done = example(repository)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "kernelbench.eval" in done.stderr


FAKE = """
class Result:
    correctness, runtime, ref_runtime, metadata = True, 2.0, 3.0, {}


def evaluate(task, candidate, *, num_correct_trials, measure_performance):
    if "float('nan')" in candidate:
        raise ValueError("not a number")
    return Result()
"""


@pytest.mark.slow
def test_the_example_takes_any_evaluator_with_kernelbenchs_signature(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "fake_evaluator.py").write_text(FAKE)
    script = repository / "examples" / "kernelbench_under_test.py"
    words = ["--evaluator", "fake_evaluator:evaluate", "--device", "cpu", "--only", "mutant/zeros", "mutant/nan"]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(script), *words],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "ACCEPTED mutant/zeros: correct at 1.5" in done.stdout
    assert "mutant/nan: not correct (the process ended with 1 and no claim ValueError: not a number)" in done.stderr
