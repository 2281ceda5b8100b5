"""Looking verdicts up, and measuring what is new."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cudal1_agent.data.prompts import build_answer
from cudal1_agent.run.machine import machine_key, verdicts_floor
from cudal1_agent.run.meter import Meter, throughput_text
from cudal1_agent.run.verdicts import Verdicts
from cudal1_env import Archive, MachineError, Status, TaskError
from cudal1_env.answers import MAX_SOURCE_CHARS
from cudal1_env.hardware import has_gpu
from doubles.training import BreakingEvaluator, HashEvaluator, RefusingEvaluator, evaluation, judged, suite

TASKS = tuple(suite().train)
PROGRAMS = [f"{variant.source}# {copy}\n" for copy in range(3) for one in TASKS for variant in one.variants]


def answer(source: str) -> str:
    return build_answer("a", "b", source)


def test_the_same_program_is_measured_once() -> None:
    evaluator = HashEvaluator()
    with Archive() as archive:
        verdicts = Verdicts(evaluator, archive)
        jobs = [(TASKS[0], answer(PROGRAMS[index])) for index in (0, 1, 0, 1, 2)]
        found = judged(verdicts.judge(jobs))
        assert [one.source for one in found] == [PROGRAMS[index] for index in (0, 1, 0, 1, 2)]
        assert len(evaluator.jobs) == len(archive) == verdicts.measured == 3
        assert verdicts.judge(jobs) == found
        # As bare source it is the same program.
        assert verdicts.judge([(TASKS[0], PROGRAMS[1])]) == [found[1]]
        assert len(evaluator.jobs) == 3


def test_the_same_program_is_measured_again_on_another_task_or_size() -> None:
    evaluator = HashEvaluator()
    with Archive() as archive:
        verdicts = Verdicts(evaluator, archive)
        sizes = TASKS[0].held_out("cpu")
        same_id = TASKS[0].model_copy(update={"source": sizes[0].source})
        for one in (TASKS[0], TASKS[1], *sizes, same_id):
            assert judged(verdicts.judge([(one, PROGRAMS[0])]))[0].task_source == one.source
        assert len(evaluator.jobs) == 5


def test_an_untimed_correct_program_is_measured_at_training_precision() -> None:
    evaluator = HashEvaluator()
    jobs = [(TASKS[0], source) for source in PROGRAMS]
    with Archive() as archive:
        verdicts = Verdicts(evaluator, archive)
        untimed = judged(verdicts.judge(jobs, precision="correct"))
        assert verdicts.judge(jobs, precision="correct") == untimed
        correct = [one.source for one in untimed if one.correct]
        assert 0 < len(correct) < len(jobs) == len(evaluator.jobs)
        timed = judged(verdicts.judge(jobs))
        assert [source for _, source in evaluator.jobs[len(jobs) :]] == correct
        assert [one.correct for one in timed] == [one.correct for one in untimed]
        assert all(one.speedup is not None for one in timed if one.correct)
        assert verdicts.judge(jobs, precision="correct") == timed


def test_without_reuse_everything_is_measured() -> None:
    evaluator = HashEvaluator()
    with Archive() as archive:
        verdicts = Verdicts(evaluator, archive, reuse=False)
        verdicts.judge([(TASKS[0], PROGRAMS[0])] * 3)
        assert len(evaluator.jobs) == 3


def test_an_answer_without_a_program_is_no_code_and_is_not_measured() -> None:
    evaluator = HashEvaluator()
    with Archive() as archive:
        found = judged(Verdicts(evaluator, archive).judge([(TASKS[0], "I give up."), (TASKS[0], "")]))
        assert [one.status for one in found] == [Status.NO_CODE] * 2
        assert evaluator.jobs == []


def test_an_answer_that_is_too_long_to_be_read_shares_no_verdict_with_its_program() -> None:
    short = answer(PROGRAMS[0])
    long = "x" * MAX_SOURCE_CHARS + short
    for answers in ([long, short], [short, long]):
        with Archive() as archive:
            verdicts = Verdicts(HashEvaluator(), archive)
            for _ in range(2):
                found = judged(verdicts.judge([(TASKS[0], one) for one in answers]))
                sources = {long: "", short: PROGRAMS[0]}
                assert [one.source for one in found] == [sources[one] for one in answers]


def test_finished_verdicts_survive_a_machine_error() -> None:
    jobs = [(TASKS[0], source) for source in PROGRAMS]
    with Archive() as archive:
        with pytest.raises(MachineError):
            Verdicts(BreakingEvaluator(after=5), archive).judge(jobs)
        assert len(archive) == 5
        rest = HashEvaluator()
        found = judged(Verdicts(rest, archive).judge(jobs))
        assert len(rest.jobs) == len(PROGRAMS) - 5
        assert [one.source for one in found] == PROGRAMS


def test_progress_counts_measurements() -> None:
    seen: list[tuple[int, int]] = []
    with Archive() as archive:
        verdicts = Verdicts(HashEvaluator(), archive)
        verdicts.judge([(TASKS[0], source) for source in PROGRAMS], progress=lambda *told: seen.append(told))
    assert seen == [(done, len(PROGRAMS)) for done in range(1, len(PROGRAMS) + 1)]


def test_a_task_that_cannot_be_judged_is_left_out_and_the_others_are_judged() -> None:
    evaluator, lines = RefusingEvaluator([TASKS[1].id]), list[str]()
    jobs = [(task, source) for source in PROGRAMS[:4] for task in TASKS]
    with Archive() as archive:
        verdicts = Verdicts(evaluator, archive, notify=lines.append)
        found = verdicts.judge(jobs)
        assert [one is None for one in found] == [task is TASKS[1] for task, _ in jobs]
        assert len(archive) == verdicts.measured == 2 * 4
        assert list(verdicts.refused) == [TASKS[1].source]
        assert lines == [f"{TASKS[1].id} is left out: {TASKS[1].id}: the double refuses it"]
        counts = evaluator.asked, len(evaluator.jobs)
        assert verdicts.judge(jobs) == found
        assert (evaluator.asked, len(evaluator.jobs)) == counts == (4, 2 * 4), "nothing is judged twice"


def test_if_no_task_can_be_judged_the_first_reason_is_raised() -> None:
    with Archive() as archive, pytest.raises(TaskError, match="the double refuses it"):
        Verdicts(RefusingEvaluator([task.id for task in TASKS]), archive).judge([(TASKS[0], PROGRAMS[0])])


def test_an_unstable_verdict_is_looked_up_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator, unstable = HashEvaluator(), evaluation(TASKS[0], PROGRAMS[0], 4.0)
    unstable = unstable.model_copy(update={"status": Status.UNSTABLE, "rewarded_low": None})
    monkeypatch.setattr(evaluator, "_judge", lambda *_: unstable)
    with Archive() as archive:
        verdicts = Verdicts(evaluator, archive)
        for _ in range(2):
            assert verdicts.judge([(TASKS[0], PROGRAMS[0])]) == [unstable]
        assert verdicts.measured == len(archive) == 1


def test_each_record_of_an_archive_counts_as_it_stands() -> None:
    """Before the judge repeated measurements itself, an UNSTABLE record preceded the one of the second measurement."""
    second = evaluation(TASKS[0], PROGRAMS[0], 5.0, identity="second")
    first = evaluation(TASKS[0], PROGRAMS[0], 4.0).model_copy(update={"status": Status.UNSTABLE})
    with Archive() as archive:
        for record in (first, second):
            archive.add(record)
        verdicts = Verdicts(HashEvaluator(), archive)
        assert verdicts.judge([(TASKS[0], PROGRAMS[0])]) == [second]
        assert verdicts.measured == 0


def test_verdicts_before_a_position_are_measured_anew() -> None:
    evaluator = HashEvaluator()
    job = (TASKS[0], PROGRAMS[0])
    with Archive() as archive:
        verdicts = Verdicts(evaluator, archive)
        verdicts.judge([job])
        verdicts.judge([job], after=archive.position())
        assert len(evaluator.jobs) == 2
        Verdicts(evaluator, archive, floor=archive.position()).judge([job])
        assert len(evaluator.jobs) == 3


def test_a_run_on_another_machine_looks_up_nothing_of_the_one_before(tmp_path: Path) -> None:
    assert verdicts_floor(tmp_path, "a", 0) == 0
    assert verdicts_floor(tmp_path, "a", 30) == 0
    assert verdicts_floor(tmp_path, "b", 50) == 50
    assert verdicts_floor(tmp_path, "b", 70) == 50
    assert verdicts_floor(tmp_path, "a", 90) == 90, "the first machine may have changed since"
    assert machine_key("cpu") == machine_key("cpu") != machine_key("cuda")


def test_the_meter_counts_each_second_for_the_innermost_part() -> None:
    now_s = [0.0]
    meter = Meter(lambda: now_s[0])
    now_s[0] = 1.0
    with meter.part("learning"):
        now_s[0] = 3.0
        with meter.part("judging"):
            now_s[0] = 7.0
        now_s[0] = 15.0
    meter.count("updates", 4)
    reading = meter.reading()
    assert reading["learning_s"] == 10.0
    assert (reading["judging_s"], reading["waiting_s"], reading["generating_s"]) == (4.0, 1.0, 0.0)
    text = throughput_text([reading])
    assert "16 updates" in text
    assert "judging 27%" in text


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU")
def test_a_judge_finds_the_gpu_memory_that_a_stage_no_longer_uses() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.weights = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
            self.itself = self

    Trainer()
    kept = torch.cuda.memory_reserved()
    with Archive() as archive:
        Verdicts(HashEvaluator(), archive).judge([(TASKS[0], PROGRAMS[0])])
    assert torch.cuda.memory_reserved() <= kept - (1 << 30)
