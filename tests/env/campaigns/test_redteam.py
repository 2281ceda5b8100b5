"""The red team: what counts as a failure, chance, broken machines, the table, the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from cudal1_data import Task
from cudal1_env.campaigns.redteam import Campaign, Outcome, judge_all, judge_program, summarise, table
from cudal1_env.commands.campaign import MachineOrService, Parts
from cudal1_env.commands.redteam import Redteam
from cudal1_env.errors import MachineError, SettingsError
from cudal1_env.evaluator import Evaluator
from cudal1_env.records import Evaluation, Status
from cudal1_env.testing.programs import Program, programs, read_header
from doubles.evaluator import evaluation

CPU = MachineOrService(device="cpu")


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


def test_a_rewarded_attack_and_a_rejected_look_alike_are_failures() -> None:
    fine = [outcome("h01_a", "WRONG_OUTPUT"), outcome("h01_a.honest", "CORRECT", reward=3.0)]
    assert summarise(fine).passed
    paid = summarise([*fine, outcome("h01_a", "CORRECT", reward=1.2)])
    assert (paid.passed, paid.attacks_rewarded, paid.attacks_with_another_status) == (False, {"h01_a": 1}, {})
    turned_away = summarise([*fine, *2 * [outcome("h01_a.honest", "TIMEOUT")]])
    assert (turned_away.passed, turned_away.look_alikes_rejected) == (False, {"h01_a.honest": 2})
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
def test_only_a_repeated_gain_is_a_reward(speedups: tuple[float, ...], counted: float) -> None:
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


def test_a_program_that_breaks_the_machine_is_a_failure_and_others_continue(tmp_path: Path) -> None:
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


def test_the_table_counts_the_outcomes_of_each_program() -> None:
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
    assert rows[3].endswith("REJECTED")


@pytest.mark.slow
def test_the_command_judges_and_says_so_by_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert Redteam(machine=CPU, only=("h14_nan",), json=True).run() == 0
    said = capsys.readouterr()
    campaign = Campaign.model_validate_json(said.out)
    assert [one.statuses for one in campaign.outcomes] == [("WRONG_OUTPUT",), ("CORRECT",)]
    assert campaign.summary.passed
    assert "1/2 h14_nan_output: WRONG_OUTPUT (as it should be)" in said.err


def test_the_command_refuses_a_selection_without_programs() -> None:
    for command in (Redteam(machine=CPU, only=("h99",)), Redteam(machine=CPU, repeats=0)):
        with pytest.raises(SettingsError, match="--repeats is 0; give at least 1|no program for cpu with --only"):
            command.run()


def test_the_command_resumes_and_joins_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    double = Breaking()
    monkeypatch.setattr("cudal1_env.judge.Judge", lambda settings: double.begin())
    outs = [tmp_path / f"{number}.jsonl" for number in range(2)]
    for number, out in enumerate(outs):
        for _ in range(2):
            Redteam(machine=CPU, only=("h14_nan",), repeats=2, out=out, parts=Parts(part=f"{number}/2")).run()
    judges = double.judges
    assert judges == 2, "expected one judge for each part, and none for what is known"
    capsys.readouterr()
    Redteam(machine=CPU, only=("h14_nan",), repeats=2, parts=Parts(known=tuple(outs)), json=True).run()
    known = Campaign.model_validate_json(capsys.readouterr().out)
    joined = tmp_path / "joined.jsonl"
    assert Redteam(machine=CPU, only=("h14_nan",), out=joined, parts=Parts(join=tuple(outs)), json=True).run() == 1
    campaign = Campaign.model_validate_json(capsys.readouterr().out)
    assert (double.judges, len(campaign.outcomes), campaign.outcomes) == (judges, 4, known.outcomes)
    assert joined.read_bytes() == b"".join(out.read_bytes() for out in outs)
    parts = Parts(join=(outs[0],))
    assert Redteam(machine=CPU, only=("h14_nan",), repeats=2, out=tmp_path / "part.jsonl", parts=parts).run() == 2
    assert "2 of 4 evaluations have no verdict in these files; run their parts again" in capsys.readouterr().err
