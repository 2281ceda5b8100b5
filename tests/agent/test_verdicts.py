"""Looking verdicts up, and measuring what is new."""

from __future__ import annotations

import pytest
from cudal1_agent.data.prompts import build_answer
from cudal1_agent.run.verdicts import CHUNK, Verdicts
from cudal1_env import Archive, MachineError, Status
from doubles.training import BreakingEvaluator, HashEvaluator, suite

TASKS = tuple(suite().train)
PROGRAMS = [f"{variant.source}# {copy}\n" for copy in range(3) for one in TASKS for variant in one.variants]


def answer(source: str) -> str:
    return build_answer("a", "b", source)


def test_the_same_program_is_measured_once() -> None:
    evaluator = HashEvaluator()
    with Archive() as archive:
        verdicts = Verdicts(evaluator, archive)
        jobs = [(TASKS[0], answer(PROGRAMS[index])) for index in (0, 1, 0, 1, 2)]
        found = verdicts.judge(jobs)
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
            assert verdicts.judge([(one, PROGRAMS[0])])[0].task_source == one.source
        assert len(evaluator.jobs) == 5


def test_an_untimed_correct_program_is_measured_at_training_precision() -> None:
    evaluator = HashEvaluator()
    jobs = [(TASKS[0], source) for source in PROGRAMS]
    with Archive() as archive:
        verdicts = Verdicts(evaluator, archive)
        untimed = verdicts.judge(jobs, precision="correct")
        assert verdicts.judge(jobs, precision="correct") == untimed
        correct = [one.source for one in untimed if one.correct]
        assert 0 < len(correct) < len(jobs) == len(evaluator.jobs)
        timed = verdicts.judge(jobs)
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
        found = Verdicts(evaluator, archive).judge([(TASKS[0], "I give up."), (TASKS[0], "")])
        assert [one.status for one in found] == [Status.NO_CODE] * 2
        assert evaluator.jobs == []


def test_finished_verdicts_survive_a_machine_error() -> None:
    jobs = [(TASKS[0], source) for source in PROGRAMS]
    with Archive() as archive:
        with pytest.raises(MachineError):
            Verdicts(BreakingEvaluator(after=CHUNK), archive).judge(jobs)
        assert len(archive) == CHUNK
        rest = HashEvaluator()
        found = Verdicts(rest, archive).judge(jobs)
        assert len(rest.jobs) == len(PROGRAMS) - CHUNK
        assert [one.source for one in found] == PROGRAMS


def test_progress_counts_measurements() -> None:
    seen: list[tuple[int, int]] = []
    with Archive() as archive:
        verdicts = Verdicts(HashEvaluator(), archive)
        verdicts.judge([(TASKS[0], source) for source in PROGRAMS], progress=lambda *told: seen.append(told))
    count = len(PROGRAMS)
    assert seen == [(min(done, count), count) for done in range(CHUNK, count + CHUNK, CHUNK)]
