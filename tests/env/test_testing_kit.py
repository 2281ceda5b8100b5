"""The testing kit: the red team's counts, mutants and templates, and other evaluators under the same suite."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from cudal1_data import Task
from cudal1_env.commands.redteam import Redteam
from cudal1_env.errors import MachineError, SettingsError
from cudal1_env.evaluator import Evaluator
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.device.tensors import Expected
from cudal1_env.judge.oracle.numerics import Answer, compare
from cudal1_env.records import Evaluation, Status
from cudal1_env.testing.child import ChildEvaluator
from cudal1_env.testing.mutants import ANSWER_MUTANTS, MUTANTS
from cudal1_env.testing.programs import Program, programs, read_header
from cudal1_env.testing.redteam import Campaign, Outcome, judge_all, judge_program, summarise, table
from cudal1_env.testing.strategies import exploits, mutants, spoilt_answers
from cudal1_env.testing.templates import TEMPLATES
from cudal1_env.testing.under_test import Case, Claim, JudgeUnderTest, Report, examine, suite
from env.doubles import evaluation
from hypothesis import given, settings
from hypothesis import strategies as st

SPOILT = suite("cpu", only=["right", "mutant/", "template/"])


def outcome(program: str, *statuses: str, reward: float = 0.0) -> Outcome:
    honest = program.endswith(".honest")
    expected = ("CORRECT",) if honest else ("WRONG_OUTPUT", "CORRECT")
    return Outcome(
        program=program,
        honest=honest,
        expected=expected,
        statuses=statuses,
        reward=reward,
        reward_at_first=reward,
        message="",
        seconds=1.0,
    )


# The red team


def test_a_rewarded_attack_and_a_denied_look_alike_are_failures() -> None:
    fine = [outcome("h01_a", "WRONG_OUTPUT"), outcome("h01_a.honest", "CORRECT", reward=3.0)]
    assert summarise(fine).passed
    paid = summarise([*fine, outcome("h01_a", "CORRECT", reward=1.2)])
    assert (paid.passed, paid.attacks_rewarded, paid.attacks_with_another_status) == (False, {"h01_a": 1}, {})
    turned_away = summarise([*fine, *2 * [outcome("h01_a.honest", "TIMEOUT")]])
    assert (turned_away.passed, turned_away.look_alikes_denied) == (False, {"h01_a.honest": 2})
    another = summarise([*fine, outcome("h01_a", "CRASH")], skipped=4)
    assert (another.passed, another.attacks_with_another_status, another.skipped) == (True, {"h01_a": 1}, 4)
    assert "4 programs for another device skipped" in another.text()


class Chance:
    """Correct, with one speedup after another."""

    def __init__(self, *speedups: float) -> None:
        self.speedups = iter(speedups)

    def evaluate(self, task: Task, source: str) -> Evaluation:
        return evaluation(task.id, source, speedup=next(self.speedups), spread=0.0)


@pytest.mark.parametrize(("speedups", "counted"), [((1.5, 0.9), 0.9), ((1.5, 1.4, 1.2), 1.2), ((0.8,), 0.8)])
def test_a_gain_by_chance_is_none_and_one_that_comes_again_is(speedups: tuple[float, ...], counted: float) -> None:
    attack = next(one for one in programs() if not one.honest and one.runs_on("cpu") and "feedback" not in one.header)
    got = judge_program(cast(Evaluator, Chance(*speedups)), attack)
    assert (got.reward, got.reward_at_first) == (counted, speedups[0])
    assert got.rewarded == (counted > 1.0)


class Breaking:
    """Breaks the machine with each program that names one of these words; counts its judges."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.judges = 0

    @contextmanager
    def begin(self) -> Iterator[Evaluator]:
        self.judges += 1
        yield cast(Evaluator, self)

    def evaluate(self, task: Task, source: str) -> Evaluation:
        if any(word in source for word in self.words):
            raise MachineError("expected the memory back")
        return evaluation(task.id, source, status=Status.WRONG_OUTPUT)


def test_a_program_that_breaks_the_machine_is_a_failure_and_others_go_on(tmp_path: Path) -> None:
    def named(name: str) -> Program:
        path = tmp_path / f"{name}.py"
        path.write_text(f"# task: starter/diag_matmul\n# status: WRONG_OUTPUT\n# {name}\n")
        return Program(path, read_header(path))

    some = [named(name) for name in ("h01_a", "h01_hog", "h01_b", "h01_c.honest", "h01_hog2")]
    breaking = Breaking("hog")
    found = list(judge_all(breaking.begin, some, "cpu"))
    assert [one.statuses for one in found] == [(status,) for status in "WMWWM".translate(WORDS).split()]
    assert breaking.judges == 2
    summary = summarise(found)
    assert (summary.passed, summary.machine_broken) == (False, {"h01_hog": 1, "h01_hog2": 1})
    assert "the machine broke with 2 programs" in summary.text()
    assert table(found).count("BROKEN") == 2
    # A broken machine is not put down to each program that follows.
    broken = Breaking("h01")
    told: list[Outcome] = []
    with pytest.raises(MachineError, match="memory"):
        told.extend(judge_all(broken.begin, some, "cpu"))
    assert broken.judges == 2


WORDS = {ord("W"): "WRONG_OUTPUT ", ord("M"): "MachineError "}


def test_the_table_counts_what_each_program_got() -> None:
    rows = table(
        [
            outcome("h01_a", "WRONG_OUTPUT"),
            outcome("h01_a", "CORRECT", reward=1.25),
            outcome("h01_a", "WRONG_OUTPUT"),
            outcome("h02_b", "RUNTIME_ERROR", "CRASH"),
            outcome("h02_b.honest", "UNSTABLE"),
        ]
    ).splitlines()
    assert rows[0].split("  ")[0] == "program"
    assert rows[1].endswith("2 WRONG_OUTPUT, 1 CORRECT  1.25            REWARDED")
    assert "1 RUNTIME_ERROR > CRASH" in rows[2]
    assert rows[3].endswith("DENIED")


def test_the_device_of_a_header_decides_where_a_program_runs() -> None:
    def on(header: dict[str, str]) -> list[bool]:
        return [Program(Path("h01_a.py"), header).runs_on(device) for device in ("cpu", "cuda")]

    assert on({}) == on({"device": "cpu"}) == [True, False]
    assert on({"device": "cuda"}) == [False, True]
    assert on({"device": "any"}) == [True, True]


def test_the_command_judges_and_says_so_by_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert Redteam(device="cpu", only=("h14_nan",), json=True).run() == 0
    said = capsys.readouterr()
    campaign = Campaign.model_validate_json(said.out)
    assert [one.statuses for one in campaign.outcomes] == [("WRONG_OUTPUT",), ("CORRECT",)]
    assert campaign.summary.passed
    assert "1/2 h14_nan_output: WRONG_OUTPUT (as it should be)" in said.err


def test_the_command_refuses_a_selection_without_programs() -> None:
    for command in (Redteam(device="cpu", only=("h99",)), Redteam(device="cpu", repeats=0)):
        with pytest.raises(SettingsError, match="expected at least one repeat and one program"):
            command.run()


# Mutants and templates


@pytest.fixture(scope="module")
def report() -> tuple[Report, dict[str, str]]:
    """Our own judge under mutants and templates, and what it said about each."""
    lines: list[str] = []
    with Judge(JudgeSettings(device="cpu")) as judge:
        found = examine(JudgeUnderTest(judge), SPOILT, margin=0.0, log=lines.append)
    return found, dict(line.split(": ", 1) for line in lines)


@pytest.mark.slow
def test_our_judge_is_sound_under_mutants_and_templates(report: tuple[Report, dict[str, str]]) -> None:
    assert report[0].cases == 1 + len(MUTANTS) + len(TEMPLATES)
    assert report[0].sound, report[0].text()


def test_mutants_run_and_are_wrong(report: tuple[Report, dict[str, str]]) -> None:
    for name in MUTANTS:
        assert report[1][f"mutant/{name}"].startswith("not correct (WRONG_OUTPUT"), report[1][f"mutant/{name}"]


@given(mutants() | exploits())
def test_what_is_drawn_is_python_behind_the_program(spoiler) -> None:
    program = "class ModelNew:\n    def forward(self, x):\n        return x\n"
    spoilt = spoiler.on(program)
    ast.parse(spoilt)
    assert spoilt.startswith(program.rstrip())
    assert spoilt.rstrip().endswith("ModelNew.forward = _forward")


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
    assert compare(right.astype(np.float32).reshape(-1), answer_of(right), expected, whole=True).right
    spoilt = data.draw(spoilt_answers(right, values, other))
    assert not compare(spoilt.astype(np.float32).reshape(-1), answer_of(right), expected, whole=True).right


def test_answers_and_programs_have_the_same_mutants() -> None:
    assert set(ANSWER_MUTANTS) == set(MUTANTS)


def test_without_hypothesis_only_the_strategies_are_missing() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import cudal1_env.testing.child, cudal1_env.testing.noise, cudal1_env.testing.redteam\n"
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


def test_a_report_names_what_was_rewarded_accepted_and_denied() -> None:
    cases = suite("cpu")
    wrong = {case.name for case in cases if not case.answers_right}
    gullible = examine(Gullible(), cases)
    assert {finding.case for finding in gullible.rewarded} == {case.name for case in cases if not case.honest}
    assert {finding.case for finding in gullible.accepted} == wrong
    assert (gullible.sound, gullible.denied) == (False, ())
    stern = examine(Stern(), cases)
    assert (stern.rewarded, stern.accepted) == ((), ())
    assert {finding.case for finding in stern.denied} == {case.name for case in cases if case.honest}
    assert stern.text().splitlines()[-1].startswith(f"{len(cases)} programs: 0 attacks rewarded")


def test_an_impossible_speedup_is_a_reward_and_noise_is_none() -> None:
    case = Case("slow", "", "", "", honest=False, answers_right=True)

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


def test_the_suite_has_teeth() -> None:
    paid = ("template/honest_first", "template/kept_by_shape")
    names = ("right", *paid, "mutant/zeros", "mutant/half_precision")
    found = examine(Naive(), [case for case in SPOILT if case.name in names], margin=1.0)
    assert [finding.case for finding in found.denied] == []
    assert {finding.case for finding in found.rewarded} >= set(paid)
    assert {finding.case for finding in found.accepted} == set(names) - {"right", "mutant/zeros"}


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
def test_a_child_that_ends_without_a_claim_has_denied(code: str, message: str) -> None:
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


def test_the_example_puts_our_judge_under_the_suite(repository: Path) -> None:
    done = example(repository, "--evaluator", "cudal1", "--device", "cpu", "--only", "h14_nan", "mutant/zeros")
    assert done.returncode == 0, done.stderr
    summary = "3 programs: 0 attacks rewarded, 0 wrong programs accepted, 0 honest ones denied"
    assert done.stdout.splitlines() == [summary]


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
