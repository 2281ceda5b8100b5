"""From variants to training pairs."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from cudal1_agent.data.examples import Pair, by_length, describe, training_pairs
from cudal1_agent.data.prompts import build_prompt, parse_answer
from cudal1_agent.errors import CorpusError
from cudal1_env import Exemplar, extract_source
from doubles.training import suite, task, variant

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


def test_prompts_show_as_many_exemplars_as_were_drawn() -> None:
    shown = Counter(len(re.findall(r"^code\d \(", pair.prompt, re.MULTILINE)) for pair in pairs(count=400))
    assert shown.keys() == {0, 1, 2}
    assert 150 < shown[0] < 250


def test_the_analysis_names_the_best_exemplar_of_the_prompt() -> None:
    for pair in pairs():
        scores = [float(score) for score in re.findall(r"^code\d \(([\d.]+)\)", pair.prompt, re.MULTILINE)]
        analysis = parse_answer(pair.answer).analysis
        if scores:
            assert analysis == f"code{scores.index(max(scores)) + 1} is fastest ({max(scores):.2f})."
        else:
            assert analysis == describe([])


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
    ordered = by_length(found, batch=4, seed=0, batches=5)
    assert Counter(ordered) == Counter(found)
    assert set(ordered[:20]) == set(found[:20]), "only what lies near is mixed"

    def padding(some: list[Pair]) -> int:
        parts = [some[start : start + 4] for start in range(0, 68, 4)]
        return sum(max(len(one.prompt) for one in part) * 4 - sum(len(one.prompt) for one in part) for part in parts)

    assert padding(ordered) < padding(found) / 2


def test_the_analysis_names_the_first_of_equal_exemplars() -> None:
    assert describe([Exemplar("a", 2.0), Exemplar("b", 2.0)]) == "code1 is fastest (2.00)."
