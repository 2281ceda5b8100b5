"""From variants to training pairs."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from cudal1_agent.data.analysis import NOTHING, analysis
from cudal1_agent.data.examples import Pair, Program, by_length, slower, training_pairs
from cudal1_agent.data.prompts import build_prompt, parse_answer
from cudal1_agent.errors import CorpusError
from cudal1_env import Exemplar, extract_source
from doubles.training import suite, task, variant
from hypothesis import given
from hypothesis import strategies as st

TASKS = tuple(suite().train)
COUNT = 90


def pairs(**changes: object) -> list[Pair]:
    values = {"device": "cpu", "have": frozenset(), "contexts": (0, 0, 1, 2), "count": COUNT, "seed": 3, **changes}
    return training_pairs(
        TASKS,
        lambda one, shown: build_prompt(one.source, shown, style="compact"),
        **values,  # type: ignore[arg-type]
    )


def test_every_answer_is_a_variant_of_its_task_in_three_sections() -> None:
    sources = {one.id: {variant.source for variant in one.variants} for one in TASKS}
    for pair in pairs():
        assert parse_answer(pair.answer).complete
        assert extract_source(pair.answer) in sources[pair.task]


def test_every_pass_has_every_variant_once() -> None:
    found = pairs()
    programs = sum(len(one.variants) for one in TASKS)
    assert len(found) == COUNT
    for start in range(0, COUNT, programs):
        part = [(pair.task, extract_source(pair.answer)) for pair in found[start : start + programs]]
        assert len(set(part)) == programs


def test_prompts_show_exemplars_and_some_do_not() -> None:
    shown = Counter(len(re.findall(r"^code\d \(", pair.prompt, re.MULTILINE)) for pair in pairs(count=400))
    assert shown.keys() == {0, 1, 2}
    assert 150 < shown[0] < 250


def test_an_answer_is_never_a_program_that_its_prompt_shows() -> None:
    for pair in pairs():
        source = extract_source(pair.answer)
        assert source is not None
        assert source not in pair.prompt


def test_the_analysis_names_the_best_exemplar_of_the_prompt() -> None:
    for pair in pairs():
        scores = [float(score) for score in re.findall(r"^code\d \(([\d.]+)\)", pair.prompt, re.MULTILINE)]
        found = parse_answer(pair.answer).analysis
        if scores:
            assert found.startswith(f"code{scores.index(max(scores)) + 1} is fastest ({max(scores):.2f}).")
        else:
            assert found == NOTHING


@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 99))
def test_a_target_is_faster_than_every_exemplar_shown(speedups: list[float], place: int, seed: int) -> None:
    programs = [Program(TASKS[0], f"p{number}", (), speedup) for number, speedup in enumerate(speedups)]
    target = programs[place % len(programs)]
    shown = slower(target, programs, 2, np.random.default_rng(seed))
    assert all(speedups[int(one.source[1:])] < (target.speedup or 0.0) for one in shown)


def test_without_measurements_more_techniques_stand_for_faster() -> None:
    programs = [Program(TASKS[0], f"p{number}", tuple("abc")[:number]) for number in range(4)]
    for seed in range(20):
        shown = slower(programs[2], programs, 3, np.random.default_rng(seed))
        assert {one.source for one in shown} == {"p0", "p1"}
        ranked = sorted(shown, key=lambda one: one.speedup)
        assert [one.source for one in ranked] == ["p0", "p1"]


def test_an_analysis_names_what_only_the_fastest_has_and_what_nobody_used() -> None:
    shown = [Exemplar("a", 1.0), Exemplar("b", 1.5)]
    tags = [["fusion"], ["fusion", "in_place"]]
    said = analysis(shown, tags, ["in_place", "tiling"])
    assert said == "code2 is fastest (1.50). Only it has in_place. Nobody used tiling."
    assert analysis(shown, tags[::-1]) == "code2 is fastest (1.50). No technique tells it from the slower ones."
    assert analysis([Exemplar("a", 1.5), Exemplar("b", 1.5)], tags) == "code1 is fastest (1.50)."


def test_the_seed_decides_the_pairs() -> None:
    assert pairs() == pairs()
    assert pairs() != pairs(seed=4)


def test_variants_that_need_what_is_missing_are_left_out() -> None:
    compiled = variant("c", "x", "c").model_copy(update={"needs": ("compiler",)})
    one = task("one", "x", ["x + 0"]).model_copy(update={"variants": (variant("plain", "x + 0"), compiled)})

    def answers(have: frozenset[str]) -> set[str | None]:
        found = training_pairs([one], lambda task, _: task.id, device="cpu", have=have, contexts=(0,), count=9, seed=0)
        return {extract_source(pair.answer) for pair in found}

    assert answers(frozenset()) == {variant("plain", "x + 0").source}
    assert compiled.source in answers(frozenset({"compiler"}))


def test_the_error_for_a_suite_without_variants_says_what_to_type() -> None:
    with pytest.raises(CorpusError, match="--stages self_train,contrast"):
        training_pairs([], lambda task, _: task.id, device="cpu", have=set(), contexts=(0,), count=1, seed=0)


def test_sorting_by_length_keeps_the_pairs_and_reduces_padding() -> None:
    found = [Pair("t", "p" * (7 * number % 50), str(number)) for number in range(70)]
    ordered = by_length(found, lambda pair: len(pair.prompt) + len(pair.answer), batch=4, seed=0, batches=5)
    assert Counter(ordered) == Counter(found)
    assert set(ordered[:20]) == set(found[:20]), "only what lies near is mixed"

    def padding(some: list[Pair]) -> int:
        parts = [some[start : start + 4] for start in range(0, 68, 4)]
        return sum(max(len(one.prompt) for one in part) * 4 - sum(len(one.prompt) for one in part) for part in parts)

    assert padding(ordered) < padding(found) / 2
