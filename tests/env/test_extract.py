"""From an answer to its program."""

from __future__ import annotations

import pytest
from cudal1_env.extract import extract_source
from hypothesis import example, given
from hypothesis import strategies as st

NEW = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
OLD = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    old = True\n"


def block(text: str, tag: str = "python", fence: str = "```") -> str:
    return f"{fence}{tag}\n{text}{fence}\n"


def answer(*code: str) -> str:
    return (
        "## Performance Analysis\ncode1 is slower, because it says\n\n"
        + block(OLD)
        + "\n## Algorithm Design\nFuse it:\n"
        + block("x = x.add_(1)\n")
        + "\n## Code\n"
        + "\n".join(code)
    )


def test_the_block_under_the_code_heading_wins() -> None:
    assert extract_source(answer(block(NEW))) == NEW
    assert extract_source(answer(block(NEW, "cuda"))) == NEW
    assert extract_source(answer(block(NEW, ""))) == NEW
    assert extract_source(answer(block(NEW, "Python title=new.py"))) == NEW


def test_the_last_of_several_code_blocks_wins() -> None:
    assert extract_source(answer(block(OLD), "On second thought:", block(NEW))) == NEW


def test_a_usage_example_behind_the_program_does_not_hide_it() -> None:
    assert extract_source(answer(block(NEW), "Use it so:", block("model = ModelNew()\n"))) == NEW
    assert extract_source(answer(block(NEW), "Run it so:", block("python run.py\n", "bash"))) == NEW


def test_a_later_section_is_not_the_code_section() -> None:
    assert extract_source(answer(block(NEW)) + "\n## Notes\n" + block(OLD)) == NEW


def test_a_heading_inside_a_block_is_a_comment() -> None:
    text = block("## Code\nx = 1\n") + block(NEW) + block("y = 1\n", "text")
    assert extract_source(text) == NEW


@pytest.mark.parametrize("heading", ["# Code", "## Code", "### Code", "## **Code**", "## code:", "## Code ##"])
def test_spellings_of_the_heading(heading: str) -> None:
    assert extract_source(block(OLD) + f"{heading}\n" + block(NEW) + "## Other\n" + block(OLD)) == NEW


def test_without_the_heading_the_last_python_block_with_a_model_wins() -> None:
    assert extract_source("First\n" + block(OLD) + "then\n" + block(NEW) + block("x = 1\n")) == NEW


def test_without_any_model_the_last_block_is_taken() -> None:
    assert extract_source("Try\n" + block("x = 1\n") + "or\n" + block("y = 2\n", "cpp")) == "y = 2\n"


def test_an_answer_cut_off() -> None:
    assert extract_source("## Code\n```python\n" + NEW) == NEW + "\n"
    assert extract_source(answer(block(NEW)) + "\nBetter still:\n```python\nclass ModelNew") == NEW


def test_bare_source_is_kept_to_the_letter() -> None:
    assert extract_source(NEW) == NEW
    assert extract_source("class ModelNew(:\n") == "class ModelNew(:\n"
    assert extract_source("ModelNew = type('ModelNew', (), {})") is not None


def test_fences_in_the_docstring_of_bare_source() -> None:
    source = '"""Example:\n\n```python\nx = f(1)\n```\n"""\n' + NEW
    assert extract_source(source) == source


@pytest.mark.parametrize("text", ["", " \n", "I cannot do that.", "from here on, import nothing", "```python\n```\n"])
def test_no_code(text: str) -> None:
    assert extract_source(text) is None


def test_indented_and_long_fences() -> None:
    indented = "1. So:\n\n   ```python\n" + "".join(f"   {line}\n" for line in NEW.splitlines()) + "   ```\n"
    assert extract_source(indented) == NEW
    long = NEW + "# ```\n```\n"
    assert extract_source(block(long, fence="````")) == long
    assert extract_source(block(NEW, fence="~~~")) == NEW


def test_windows_line_ends_stay() -> None:
    text = NEW.replace("\n", "\r\n")
    assert extract_source("## Code\r\n```python\r\n" + text + "```\r\n") == text


def test_text_that_is_no_utf_8_is_replaced() -> None:
    assert extract_source("class ModelNew: '\ud800'") == "class ModelNew: '?'"


fragments = st.one_of(
    st.text(st.characters(), max_size=20),
    st.sampled_from(
        ["```", "~~~~", "```python\n", "\n## Code\n", "\n", "class ModelNew:", "import x", "#", " ", "\x00"]
    ),
)


@given(text=st.lists(fragments, max_size=30).map("".join))
@example(text="```\n" * 1000)
@example(text="## Code\n```python" + " " * 100_000)
@example(text=(" \t" * 50_000) + "class")
def test_any_text_gives_a_program_that_utf_8_holds_or_nothing(text: str) -> None:
    source = extract_source(text)
    if source is not None:
        assert source.strip()
        assert source.encode().decode() == source


@given(body=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="`~"), max_size=200))
def test_a_block_comes_out_as_it_went_in(body: str) -> None:
    source = NEW + "# " + body.replace("\n", " ").replace("\r", " ") + "\n"
    assert extract_source(answer(block(source))) == source
