"""The search: what it spends, what it keeps, and what a policy that fails costs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agent.optimized import module_file
from cudal1_agent.errors import PolicyError
from cudal1_agent.optimize.budget import Budget, OverError
from cudal1_agent.optimize.search import Search, low
from cudal1_agent.optimize.sources import Answers, Candidate, full_prompt, templates
from cudal1_agent.optimize.target import read_target
from cudal1_agent.policies.openai import OpenAIPolicy
from cudal1_env import Archive, Status
from doubles.evaluator import RuleEvaluator, evaluation, program, task


class Judge(RuleEvaluator):
    """The double as a judge that can be retired; it waits where a program asks for that."""

    def evaluate(self, task: Any, source: str, **more: Any) -> Any:
        if "# endless" in source:
            time.sleep(60)
        if "# slow" in source:
            time.sleep(0.2)
        return super().evaluate(task, source, **more)

    def retire(self) -> dict[str, str]:
        return {}


class Scripted:
    """A policy with given answers, which are repeated."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.prompts: list[str] = []
        self.closed = threading.Event()

    def sample(self, prompts: Sequence[str], n: int, **_: Any) -> list[list[str]]:
        self.prompts += prompts
        taken = [self.answers[index % len(self.answers)] for index in range(len(prompts))]
        self.answers = self.answers[len(prompts) :] or self.answers
        return [[one] for one in taken]

    def close(self) -> None:
        self.closed.set()


class Silent(Scripted):
    """A policy that never answers."""

    def sample(self, prompts: Sequence[str], n: int, **_: Any) -> list[list[str]]:
        self.closed.wait(30)
        raise PolicyError("closed")


def searching(
    archive: Archive, *, seconds: float = 1000.0, candidates: int = 8
) -> tuple[Search, list[str], list[Judge]]:
    said: list[str] = []
    judges: list[Judge] = []

    def begin() -> Judge:
        judges.append(Judge())
        return judges[-1]

    return Search(task(), archive, Budget(seconds, candidates), begin, said.append), said, judges


def some(*speedups: float) -> list[Candidate]:
    return [Candidate(program(one), f"template {one}") for one in speedups]


def test_each_program_is_judged_once_and_the_best_so_far_is_told() -> None:
    with Archive() as archive:
        search, said, judges = searching(archive)
        search.try_all(some(1.5, 2.0, 1.5, 0.5))
        assert len(judges[0].jobs) == len(archive) == 3
        assert search.best is not None
        assert search.best.point == 2.0
        assert [one.origin for one, _ in search.ranked()] == ["template 2.0", "template 1.5"]
        assert "3 of 8 candidates" in said[-1]
        assert "best so far 2.00 x" in said[-1]


def test_no_more_candidates_are_judged_than_allowed() -> None:
    with Archive() as archive:
        search, _, _ = searching(archive, candidates=2)
        search.try_all(some(1.1, 1.2, 1.3))
        assert len(archive) == 2


@pytest.mark.parametrize(("seconds", "candidates", "count"), [(1000.0, 6, 3), (4.0, 100, 6)])
def test_half_of_the_candidates_and_of_the_time_is_left_if_asked_for(
    seconds: float, candidates: int, count: int
) -> None:
    with Archive() as archive:
        search, _, _ = searching(archive, seconds=seconds, candidates=candidates)
        search.try_all((replace(one, source=f"# slow\n{one.source}") for one in some(*range(1, 31))), share=0.5)
        assert 1 <= search.programs <= count  # the search has 2.2 s of 4; a program takes 0.2 s
        assert not search.untried
        search.try_all(some(31.0))
        assert search.best is not None
        assert search.best.point == 31.0


def test_a_search_goes_on_behind_what_an_earlier_one_judged() -> None:
    with Archive() as archive:
        searching(archive)[0].try_all(some(1.5, 2.0))
        search, _, judges = searching(archive)
        search.try_all(some(1.5, 2.0, 3.0))
        assert [source for _, source in judges[0].jobs] == [program(3.0)]
        assert search.programs == 3
        assert [shown.after_s == 0 for _, _, shown in search.judged] == [True, True, False]


def test_a_program_that_outlasts_the_budget_is_interrupted_and_the_judge_replaced() -> None:
    with Archive() as archive:
        search, _, judges = searching(archive)
        search.try_all(some(1.5))
        began = time.monotonic()
        with pytest.raises(OverError):
            search.judge(Candidate("# endless\n" + program(9.0), "template"), 0.2)
        assert time.monotonic() - began < 5
        assert judges[0].closed
        search.try_all(some(2.0))
        assert len(judges) == 2
        assert len(archive) == 2


def test_a_search_without_time_is_told_from_one_without_candidates() -> None:
    with Archive() as archive:
        assert not searching(archive)[0].untried
        late, _, judges = searching(archive, seconds=1e-9)
        late.try_all(some(1.5))
        assert late.untried
        assert not judges


def test_the_end_that_is_believed_allows_for_the_judges_overhead() -> None:
    found = evaluation(speedup=2.0)
    assert low(found) == pytest.approx(1.96)
    assert low(found.model_copy(update={"rewarded_low": 1.2})) == 1.2
    assert low(evaluation(status=Status.CRASH)) == 0.0


def answer(speedup: float) -> str:
    return f"## Code\n```python\n{program(speedup)}```\n"


def test_prompts_show_earlier_programs_with_their_scores() -> None:
    policy = Scripted(*map(answer, (2.0, 2.5, 3.0, 3.5, 4.0)))
    with Archive() as archive:
        search, _, _ = searching(archive, candidates=7)
        search.try_all(some(1.5))
        search.ask(Answers(policy, full_prompt("cpu"), max_new_tokens=8))
        assert all("code1 (1.50)" in prompt for prompt in policy.prompts[:4])
        assert any(f"({score:.2f})" in policy.prompts[4] for score in (2.0, 2.5, 3.0, 3.5))
        assert search.ranked()[0][0].origin == "answer 5"


def test_a_policy_that_writes_no_programs_is_left_after_two_rounds() -> None:
    policy = Scripted("I would fuse the loops.")
    with Archive() as archive:
        search, _, _ = searching(archive)
        fault = search.ask(Answers(policy, full_prompt("cpu"), max_new_tokens=8))
        assert fault == "nothing new in 2 rounds; 8 of 8 answers held no program"


def test_a_policy_that_never_answers_costs_no_more_than_the_budget() -> None:
    policy = Silent("")
    with Archive() as archive:
        search, _, _ = searching(archive, seconds=1.0)
        began = time.monotonic()
        fault = search.ask(Answers(policy, full_prompt("cpu"), max_new_tokens=8))
        assert fault is not None
        assert "had not answered after 1 s" in fault
        assert time.monotonic() - began < 5
        assert policy.closed.is_set()


def test_templates_write_programs_that_run_on_a_cpu(tmp_path: Path) -> None:
    found = list(templates(read_target(str(module_file(tmp_path))).task, "cpu"))
    assert found
    assert all("cuda" not in one.source for one in found)


def test_the_share_for_confirming_is_kept_from_the_search() -> None:
    assert Budget(100.0, 1).search_s == pytest.approx(55.0, abs=1)
    assert Budget(3600.0, 1).search_s == pytest.approx(3445.0, abs=1)
    with pytest.raises(OverError), Budget(0.0, 1).within(0.0):
        json.dumps("never")


class Nonsense(BaseHTTPRequestHandler):
    """An endpoint that answers every request with a page."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "13")
        self.end_headers()
        self.wfile.write(b"<html>?</html"[:13])

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_endpoint_that_answers_nonsense_ends_the_asking_and_keeps_what_was_found() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Nonsense) as server, Archive() as archive:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        policy = OpenAIPolicy("m", url=f"http://127.0.0.1:{server.server_port}/v1", parallel=4, timeout_s=5.0)
        search, _, _ = searching(archive)
        search.try_all(some(1.5))
        fault = search.ask(Answers(policy, full_prompt("cpu"), max_new_tokens=8))
        policy.close()
        server.shutdown()
        thread.join()
        assert fault is not None
        assert "sent no chat completion but '<html>" in fault
        assert search.best is not None
