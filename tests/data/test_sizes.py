"""Setting a program's constants: what is named changes, nothing else does."""

from __future__ import annotations

import ast

import pytest
from cudal1_data import BrokenTaskError, Task, load_suite, load_task
from cudal1_data.sizes import parse_size
from cudal1_data.task import with_constants
from hypothesis import given, settings
from hypothesis import strategies as st

STARTER = load_suite("starter")
names = st.text("ABCDEFGH", min_size=1, max_size=4)
constants = st.dictionaries(names, st.integers(0, 10**9), min_size=1, max_size=6)
sizes = st.dictionaries(names, st.integers(1, 10**9), min_size=1, max_size=6)


def program_with(values: dict[str, int], comment: str) -> str:
    head = "".join(f"{name} = {value}  # {comment}\n" for name, value in values.items())
    return head + "class Model:\n    A = 5\n\ndef get_inputs():\n    return [A]\n"


def read(source: str) -> dict[str, int]:
    return {
        node.targets[0].id: node.value.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, int)
    }


@settings(deadline=None)
@given(constants, st.data(), st.sampled_from(["plain", "\u00e9\u4e2d"]))
def test_only_named_constants_change(values: dict[str, int], data: st.DataObject, comment: str) -> None:
    chosen = data.draw(st.sets(st.sampled_from(sorted(values)), min_size=1))
    new = {name: data.draw(st.integers(0, 10**9)) for name in sorted(chosen)}
    source = program_with(values, comment)
    changed = with_constants(source, new, where="test")
    assert changed == program_with(values | new, comment)
    assert with_constants(changed, {name: values[name] for name in new}, where="test") == source


@settings(deadline=None)
@given(sizes)
def test_size_survives_an_id(values: dict[str, int]) -> None:
    assert parse_size(",".join(f"{name}={value}" for name, value in values.items())) == values


@settings(deadline=None)
@given(st.sampled_from(STARTER.ids), st.sampled_from(["cpu", "cuda"]))
def test_held_out_tasks_carry_their_size(task_id: str, device: str) -> None:
    task = STARTER[task_id]
    for size, sized in zip(task.sizes[device].held_out, task.held_out(device), strict=True):  # type: ignore[index,arg-type]
        assert read(sized.source) == read(task.source) | size
        assert load_task(sized.id).source == sized.source
        assert sized.id.startswith(f"{task_id}@")


def test_a_sized_task_at_another_size_has_one_size() -> None:
    task = load_task("starter/diag_matmul")
    sized = task.at({"N": 8, "M": 4}).at({"M": 2})
    assert sized.id == "starter/diag_matmul@N=8,M=2"
    assert sized == task.at({"N": 8, "M": 2})
    assert load_task(sized.id) == sized


@pytest.mark.parametrize(
    "spec", ["starter/diag_matmul@N=0", "starter:diag_matmul@N=-4", "generated/softmax-7-3@ROWS=0"]
)
def test_a_size_of_nothing_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="in numbers of 1 or more"):
        load_task(spec)


def test_the_error_for_an_unknown_constant_lists_the_known_ones() -> None:
    with pytest.raises(
        BrokenTaskError, match=r"no integer constant FOO at its top level; its constants are N = \d+, M = \d+$"
    ):
        load_task("starter/diag_matmul@FOO=4")
    task = Task(id="t", source="x = 2.5\n", name="t", level=1, origin="file")
    with pytest.raises(BrokenTaskError, match="has none: leave the size out"):
        task.at({"N": 1})


@pytest.mark.parametrize("text", ["", "N", "N=", "N=-1", "N=0", "N=4,M=0", "N=1,", "N=1;M=2"])
def test_bad_size(text: str) -> None:
    with pytest.raises(ValueError, match="invalid size"):
        parse_size(text)


def test_constant_that_is_not_there() -> None:
    task = Task(id="t", source="N = 4\nM = 2 * N\n", name="t", level=1, origin="file")
    with pytest.raises(BrokenTaskError, match=r"no integer constant M, Q at"):
        task.at({"N": 1, "M": 2, "Q": 3})
