"""The contrastive prompt and its answer."""

from __future__ import annotations

import re

import pytest
from cudal1_agent.data.prompts import Style, build_answer, build_prompt, fitting, parse_answer
from cudal1_env import Exemplar, extract_source
from hypothesis import given
from hypothesis import strategies as st

REFERENCE = "class Model:\n    pass\n"
FAST, SLOW = Exemplar("class ModelNew:\n    fast = 1\n", 2.5), Exemplar("class ModelNew:\n    slow = 1\n", 0.5)

lines = st.text(st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=80)


@pytest.mark.parametrize("style", ["compact", "full"])
def test_a_prompt_has_the_papers_five_parts_in_order(style: Style) -> None:
    prompt = build_prompt(REFERENCE, [SLOW, FAST], style=style)
    parts = [r"Compare|expert", r"## Reference", r"## Previous", r"## Protocol", r"## R(ules|equirements)"]
    places = [re.search(part, prompt) for part in parts]
    assert all(places)
    starts = [place.start() for place in places if place]
    assert starts == sorted(starts)


@pytest.mark.parametrize("style", ["compact", "full"])
def test_exemplars_come_in_order_with_their_scores(style: Style) -> None:
    prompt = build_prompt(REFERENCE, [SLOW, FAST], style=style)
    order = ["code1 (0.50)", "slow = 1", "code2 (2.50)", "fast = 1"]
    assert [prompt.index(text) for text in order] == sorted(prompt.index(text) for text in order)


@pytest.mark.parametrize("style", ["compact", "full"])
def test_a_prompt_without_exemplars_says_so(style: Style) -> None:
    prompt = build_prompt(REFERENCE, [], style=style)
    assert "none" in prompt
    assert "code1" not in prompt


def test_the_full_style_states_the_restrictions_and_names_the_device() -> None:
    prompt = build_prompt(REFERENCE, [], style="full", device="cuda")
    for word in ("NVIDIA GPU", "kept from one run to the next", "hyper-parameter", "score is 0", "same names, shapes"):
        assert word in prompt


def test_exemplars_beyond_the_token_limit_are_dropped_slowest_first() -> None:
    def fitted(limit: int) -> str:
        shown = fitting(REFERENCE, [FAST, SLOW], style="compact", count=len, limit=limit)
        return build_prompt(REFERENCE, shown, style="compact")

    both = len(build_prompt(REFERENCE, [FAST, SLOW], style="compact"))
    one = len(build_prompt(REFERENCE, [FAST], style="compact"))
    assert "slow = 1" in fitted(both)
    assert "slow = 1" not in fitted(both - 1)
    assert "fast = 1" in fitted(one)
    assert "code1" not in fitted(one - 1)
    assert fitted(0) == build_prompt(REFERENCE, [], style="compact")


@given(lines, lines)
def test_an_answer_is_parsed_back(analysis: str, design: str) -> None:
    code = "class ModelNew:\n    pass\n"
    text = build_answer("because " + analysis.replace("\n", " "), "so " + design.replace("\n", " "), code)
    answer = parse_answer(text)
    assert answer.complete
    assert answer.analysis == ("because " + analysis.replace("\n", " ")).strip()
    assert answer.design == ("so " + design.replace("\n", " ")).strip()
    assert extract_source(text) == code


def test_fences_inside_a_program_stay_inside() -> None:
    code = 'class ModelNew:\n    """\n```python\nx = 1\n```\n    """\n'
    assert extract_source(build_answer("a", "b", code)) == code


@given(st.text())
def test_parsing_an_answer_never_fails(text: str) -> None:
    answer = parse_answer(text)
    assert answer.complete == bool(answer.analysis and answer.design and answer.code)


def test_a_repeated_section_replaces_the_first_and_comments_are_not_headings() -> None:
    answer = parse_answer("## Code\nold\n## Code\nnew\n# Algorithm Design\nrest")
    assert answer.code == "new\n# Algorithm Design\nrest"
    assert answer.design == ""
