"""Generated tasks: the same everywhere, split by structure, and worth solving."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cudal1_data import Suite, Task, UnknownSuiteError, UnknownTaskError, load_suite, load_task
from cudal1_data.cli import main
from cudal1_data.generator import FAMILIES, bounds, curriculum, grid, make_task, parse_request, structure, tag_of
from cudal1_data.generator.bounds import ANY, Interval
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.families import FORWARD_ONLY, NAMED_ONLY
from cudal1_data.generator.families.loss import ELEMENTS
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import reduced
from cudal1_data.generator.structure import Node
from cudal1_data.generator.values import Value, pointwise
from cudal1_data.generator.vocabulary import BINARY, MASKED, SCALARS, UNARY, Operator
from cudal1_data.task import check_reference
from cudal1_env.campaigns.scan import Scan
from cudal1_env.campaigns.scan_child import measured
from hypothesis import given, settings
from hypothesis import strategies as st


@functools.cache
def forward() -> Suite:
    return load_suite("generated?n=320&seed=11")


@functools.cache
def backward() -> Suite:
    return load_suite("generated?n=160&seed=11&backward=1")


@pytest.mark.parametrize("made", [forward, backward], ids=["forward", "backward"])
def test_every_family_gives_ordinary_tasks(made: Callable[[], Suite]) -> None:
    suite = made()
    without = FORWARD_ONLY if made is backward else set[str]()
    assert {tag_of(task, "family") for task in suite} == set(FAMILIES) - without - NAMED_ONLY
    assert len(FAMILIES) >= 16
    for task in suite:
        check_reference(task.source, where=task.id)
        assert task.source.isascii()
        assert max(map(len, task.source.splitlines())) <= 150, task.id
        assert task.origin == "generated"
        assert task.level in (1, 2, 3)
        assert tag_of(task, "dtype") in ("float32", "bfloat16", "float16")
        assert task.sizes.keys() == {"cpu", "cuda"}
        assert task.on("cpu").source == task.source
        assert ("backward" in task.tags) == ("autograd.grad" in task.source)


def test_layers_are_one_step_a_line_without_further_inputs() -> None:
    tasks = list(load_suite("generated:layers?n=60&seed=2"))
    assert all("def forward(self, x):\n" in task.source for task in tasks)
    assert all(line.count("F.") + line.count("torch.") <= 1 for task in tasks for line in forward_of(task))
    assert {len(forward_of(task)) for task in tasks} >= {4, 5, 6, 7}
    for part in ("nn.Linear(", "nn.Conv1d(", "nn.Conv3d(", "output_padding=1", "nn.GroupNorm(", "F.max_pool3d(", " / "):
        assert any(part in task.source for task in tasks), part


def test_short_tasks_are_one_operator_or_layer_and_little_else() -> None:
    tasks = list(load_suite("generated:short?n=240&seed=2"))
    counts = [int(tag_of(task, "operators")) for task in tasks]
    assert max(counts) <= 6
    assert sum(count <= 2 for count in counts) > 0.8 * len(counts)
    for part in ("torch.bmm(", "nn.Conv2d(", "torch.cumsum(", "torch.cumprod(", "torch.softmax(", "nn.GroupNorm("):
        assert any(part in task.source for task in tasks), part
    for part in ("torch.cat((torch.zeros_like(x", "bik,bkj->bij", "bpik,kj->bpij", "torch.argm", "F.cross_entropy("):
        assert any(part in task.source for task in tasks), part
    # A product, a sum or a convolution without bias on its own would be a task of a benchmark for one operator.
    alone = [task.source for task, count in zip(tasks, counts, strict=True) if count == 1]
    assert all("**0.5" in source or ("nn.Conv" in source and "bias=False" not in source) for source in alone)


def test_places_of_extremes_are_drawn_where_rounding_changes_none() -> None:
    tasks = [task for task in load_suite("generated:short?n=240&seed=2") if "torch.arg" in task.source]
    assert {tag_of(task, "dtype") for task in tasks} == {"float32"}
    exact = r"return torch.arg(max|min)\(torch.(abs\(x|(maximum|minimum)\(x, y)\), dim=-[12](, keepdim=True)?\)"
    assert all(re.search(exact, task.source) for task in tasks)


def test_short_tasks_have_convolutions_of_every_kind() -> None:
    sources = [task.source for task in load_suite("generated:short?n=240&seed=2")]
    kinds = [f"nn.Conv{kind}{rank}d(" for kind in ("", "Transpose") for rank in (1, 2, 3)]
    settings = ("stride=2", "stride=(", "padding=(", "dilation=2", "output_padding=", "groups=4", "groups=channels")
    for part in (*kinds, *settings, "bias=False", "channels, out, (", "return self.conv(x)"):
        assert any(part in source for source in sources), part


def forward_of(task: Task) -> list[str]:
    return task.source.partition("def forward(self, x):\n")[2].partition("\n\n")[0].splitlines()


def test_dtypes_layouts_and_levels_vary() -> None:
    assert {tag_of(task, "dtype") for task in forward()} == {"float32", "bfloat16", "float16"}
    assert {tag_of(task, "layout") for task in forward()} >= {"contiguous", "transposed", "channels_last"}
    assert {task.level for task in forward()} == {1, 2, 3}


def test_structures_hardly_repeat() -> None:
    assert len({tag_of(task, "structure") for task in forward()}) >= 0.97 * len(forward())


def test_a_gpu_gets_more_work() -> None:
    cpu, cuda = load_suite("generated:norm?n=3"), load_suite("generated:norm?n=3", device="cuda")
    assert cpu.ids == cuda.ids
    assert all(one.source != other.source for one, other in zip(cpu, cuda, strict=True))


NAMES = st.tuples(st.sampled_from(sorted(FAMILIES)), st.integers(0, 2**40), st.integers(0, 500), st.booleans()).map(
    lambda name: (*name[:3], name[3] and name[0] not in FORWARD_ONLY)
)


@settings(deadline=None, max_examples=60)
@given(NAMES)
def test_a_task_is_the_same_each_time(name: tuple[str, int, int, bool]) -> None:
    family, seed, number, backward = name
    task = make_task(family, seed, number, backward=backward)
    assert make_task(family, seed, number, backward=backward) == task
    assert load_task(task.id) == task


def test_a_task_does_not_depend_on_how_many_or_which_others_are_made() -> None:
    one = load_suite("generated:softmax?n=3&seed=4")
    more = load_suite("generated:scan+softmax?n=20&seed=4")
    assert [task.source for task in one] == [more[task.id].source for task in one]


def test_a_task_does_not_depend_on_the_process() -> None:
    code = (
        "import hashlib; from cudal1_data import load_suite; "
        "print(hashlib.sha256(''.join(t.model_dump_json() for t in load_suite('generated?n=48')).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "12345")
    }
    assert len(digests) == 1


def test_generating_imports_no_torch() -> None:
    code = "import sys; from cudal1_data import load_suite; load_suite('generated?n=16'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# Splits


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.lists(NAMES, min_size=2, max_size=6))
def test_no_structure_stands_in_two_splits(names: list[tuple[str, int, int, bool]]) -> None:
    splits: dict[str, set[str]] = {}
    for family, seed, number, backward in names:
        task = make_task(family, seed, number, backward=backward)
        splits.setdefault(tag_of(task, "structure"), set()).add(task.split)
    assert all(len(found) == 1 for found in splits.values())


LEAVES = st.sampled_from(["x", "w"]).map(Node)
TREES = st.recursive(
    LEAVES,
    lambda below: st.one_of(
        st.tuples(st.sampled_from(["relu", "tanh", "sum"]), below).map(lambda pair: Node(pair[0], (pair[1],))),
        st.tuples(st.sampled_from(["add", "mul", "sub"]), below, below).map(lambda three: Node(three[0], three[1:])),
    ),
    max_leaves=8,
)


def altered(node: Node, draw: Draw) -> Node:
    """The same operators with other leaves and details, and with operands in another order where that is the same."""
    if not node.operands:
        return Node(draw.one(("x", "w", "i")))
    operands = [altered(one, draw) for one in node.operands]
    if node.operator in structure.COMMUTATIVE and draw.chance(0.5):
        operands.reverse()
    return Node(node.operator, tuple(operands), detail=draw.one(("", "rows", "columns")))


@given(TREES, st.integers(0, 1000))
def test_the_split_sees_operators_only(tree: Node, seed: int) -> None:
    assert structure.split_of(altered(tree, Draw(seed))) == structure.split_of(tree)


@given(TREES, TREES)
def test_other_operators_have_another_key(one: Node, other: Node) -> None:
    """Equal keys come from equal texts, once leaves and the order of operands are put aside."""

    def plain(node: Node) -> tuple[object, ...]:
        below = [plain(each) for each in node.operands]
        if node.operator in structure.COMMUTATIVE:
            below.sort(key=repr)
        return (node.operator if node.operands else "leaf", *below)

    assert (one.key == other.key) == (plain(one) == plain(other))


def test_gradients_are_in_the_split_of_their_structure() -> None:
    keys: dict[str, str] = {}
    for task in [*forward(), *backward()]:
        assert keys.setdefault(tag_of(task, "structure"), task.split) == task.split


def test_splits_have_their_shares() -> None:
    counts = Counter(task.split for task in [*forward(), *backward()])
    assert counts["train"] / counts.total() == pytest.approx(0.8, abs=0.07)
    assert counts["validation"] / counts.total() == pytest.approx(0.1, abs=0.05)
    assert len(forward().train) + len(forward().validation) + len(forward().test) == len(forward())


# Levels


def test_levels_follow_difficulty() -> None:
    scores = {level: [int(tag_of(t, "difficulty")) for t in forward() if t.level == level] for level in (1, 2, 3)}
    assert max(scores[1]) < min(scores[2]) <= max(scores[2]) < min(scores[3])


def test_a_curriculum_goes_from_easy_to_hard() -> None:
    tasks = list(load_suite("generated?n=64&seed=11&order=curriculum"))
    assert tasks == curriculum(reversed(tasks))
    scores = [int(tag_of(task, "difficulty")) for task in tasks]
    assert scores == sorted(scores)
    assert {task.id for task in tasks} == set(load_suite("generated?n=64&seed=11").ids)


def test_other_tasks_have_no_such_tags() -> None:
    with pytest.raises(KeyError, match="expected a tag structure"):
        tag_of(load_task("starter/diag_matmul"), "structure")


# What a user types


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("generated:softmx", "unknown family 'softmx'; did you mean softmax.* The families are elementwise"),
        ("generated:softmax+", "unknown family ''; the families are"),
        ("generated?n=0", "n: Input should be greater than or equal to 1, got '0'"),
        ("generated?n=many", "n: Input should be a valid integer.* got 'many'"),
        ("generated?seed=-1", "seed: Input should be greater than or equal to 0"),
        ("generated?backward=perhaps", "backward: Input should be a valid boolean"),
        ("generated?order=random", "order: Input should be 'family' or 'curriculum'"),
        ("generated?families=softmax", "unknown option 'families'; the options are n="),
        ("generated:softmax?sed=7", "unknown option 'sed'; the options are n=.*, seed="),
        ("generated?n=3&n=5", "n is given twice, as 3 and 5; leave one out"),
    ],
)
def test_bad_requests_name_what_was_expected(spec: str, reason: str) -> None:
    with pytest.raises(UnknownSuiteError, match=reason):
        load_suite(spec)


@pytest.mark.parametrize("name", ["softmax", "softmax-7", "softmax-7-x", "softmax-7-1-forward", "Softmax-7-1"])
def test_bad_names_name_what_was_expected(name: str) -> None:
    with pytest.raises(UnknownTaskError, match="write FAMILY-SEED-NUMBER"):
        load_task(f"generated/{name}")


def test_an_unknown_family_in_a_name_is_named() -> None:
    with pytest.raises(UnknownSuiteError, match="the families are"):
        load_task("generated/kernel-7-1")


def test_tasks_are_shared_out_among_families() -> None:
    assert len(load_suite("generated:scan+norm+loss?n=8")) == 8
    counts = Counter(tag_of(task, "family") for task in load_suite("generated:scan+norm+loss?n=8"))
    assert counts == {"scan": 3, "norm": 3, "loss": 2}
    assert parse_request("norm+norm").families == ("norm",)


def test_a_task_has_other_sizes() -> None:
    task = load_task("generated/elementwise-7-3")
    name, value = next(iter(task.sizes["cpu"].default.items()))
    assert f"{name} = {value}" in task.source
    assert f"{name} = 33" in load_task(f"{task.id}@{name}=33").source


def test_list_show_and_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = "generated:pooling+loss?n=6&seed=2"
    suite = load_suite(spec)
    assert main(["list", spec, "--json"]) == 0
    assert [entry["id"] for entry in json.loads(capsys.readouterr().out)] == list(suite.ids)
    assert main(["show", suite[0].id]) == 0
    assert capsys.readouterr().out == suite[0].source
    assert main(["export", spec, str(tmp_path / "tasks.jsonl")]) == 0
    again = load_suite(tmp_path / "tasks.jsonl")
    assert [(t.id, t.source, t.split, t.tags, t.level) for t in again] == [
        (t.id, t.source, t.split, t.tags, t.level) for t in suite
    ]
    assert main(["export", spec, str(tmp_path / "folder")]) == 0
    assert len(list((tmp_path / "folder").rglob("*.py"))) == len(suite)
    assert main(["list", "generated:pool"]) == 2
    assert "The families are" in capsys.readouterr().err


# What the generator keeps out


def leaf(kind: grid.Kind = "full", name: str = "x") -> grid.Grid:
    return grid.leaf(name, Draw("test", name), kind)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: max(-x * x, 0.0),
        lambda x: 0.0 * x + 3.0,
        lambda x: 100.0 + x,
        lambda x: min(max(x, -0.001), 0.001) ** 2 * 1e-9 + 1.0,
        lambda x: 1e-3 * x,
        lambda x: 50.0 * x,
        lambda x: float("inf") if x > 2 else x,
    ],
)
def test_answers_that_tell_little_are_refused(function) -> None:
    assert not grid.informative(grid.apply(function, leaf()))


def test_an_answer_must_depend_on_each_leaf() -> None:
    x, y = leaf(), leaf(name="y")
    assert grid.informative(grid.apply(lambda a, b: a + b, x, y))
    assert not grid.informative(grid.apply(lambda a, b: a + 0.01 * b, x, y))
    shares = grid.rows(lambda line: [1.0 / len(line)] * len(line), x)
    assert not grid.informative(shares)


def test_operators_that_run_over_are_refused() -> None:
    assert grid.apply(lambda x: (1000.0 * x * x) ** 200, leaf()) is None


def test_means_of_many_alike_are_refused() -> None:
    def accepted(kind: grid.Kind, lines: list[list[int]]) -> int:
        return sum(grid.stands_out(grid.leaf("x", Draw(kind, number), kind).values, lines) for number in range(200))

    assert accepted("full", grid.ROWS) <= 5
    assert accepted("uneven", grid.ROWS) >= 60
    assert accepted("tilted", grid.COLUMNS) >= 60
    assert accepted("tilted", grid.ROWS) <= 5


def test_curved_names_leaves_that_enter_nonlinearly() -> None:
    program = Program(Draw("curved"), backward=True)
    x, y = program.input("x", ("N", "M")), program.input("y", ("N", "M"))
    w = program.parameter("w", ("M",))
    by_name = {one.name: one for one in (*UNARY, *BINARY)}
    total = pointwise(by_name["add"], x, y)
    assert total is not None
    assert total.curved == frozenset()
    product = pointwise(by_name["mul"], x, y)
    assert product is not None
    assert product.curved == {"x", "y"}
    scaled = pointwise(by_name["mul"], x, w)
    assert scaled is not None
    assert scaled.curved == {"w"}, "a gradient does not depend on an input that enters linearly"
    bent = pointwise(by_name["tanh"], scaled)
    assert bent is not None
    assert bent.curved == {"x", "w"}


@pytest.mark.parametrize("operator", [*UNARY, *SCALARS, *BINARY, *MASKED, *ELEMENTS], ids=lambda one: one.name)
def test_the_numbers_of_an_operator_are_those_of_its_text(operator) -> None:
    """The numbers that the generator reckons with are those that the text computes."""
    count = 1 if operator in (*UNARY, *SCALARS) else 2
    values = [[0.5 * Draw("values", operator.name, place).normal() for _ in range(64)] for place in range(count)]
    if operator in MASKED:
        values[1] = [float(value > 0) for value in values[1]]
    tensors = [torch.tensor(one, dtype=torch.float64) for one in values]
    if operator in MASKED:
        tensors[1] = tensors[1] > 0
    constant = operator.constants[0] if operator.constants else None
    text = operator.text.format("a", "b", c=constant)
    names = {"torch": torch, "F": torch.nn.functional, "a": tensors[0], "b": tensors[-1]}
    got = eval(text, names)
    extra = () if constant is None else (constant,)
    want = torch.tensor([operator.function(*each, *extra) for each in zip(*values, strict=True)], dtype=torch.float64)
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


# What the tasks do


@pytest.mark.slow
def test_rounding_is_not_magnified_where_millions_of_values_are_drawn() -> None:
    tasks = load_suite("generated:softmax+scan?n=160&seed=0")
    structures = [tag_of(task, "structure") for task in tasks]
    assert sum(bool(re.search(r"softm(ax|in)\[columns\]", text)) for text in structures) > 1
    assert sum("cumprod[" in text for text in structures) > 1
    for text in structures:
        assert not re.search(r"(softmax|softmin)\[columns\]\(where\(", text)
        assert not re.search(r"(sin|cos)\((softmax|softmin|cumprod)\[", text)


@pytest.mark.parametrize(
    ("task_id", "unstable"),
    [
        ("generated/norm-0-164", "vector_norm[rows]"),
        ("generated/reduction-0-38", "neg(square(shift(add(x0,amax[columns]"),
        ("generated/loss-0-167", "tanh(lerp(mul(gather(log_softmax"),
        ("generated/softmax-0-46", "softmax[columns](square("),
    ],
)
def test_structures_that_fail_only_at_large_sizes_are_not_made(task_id: str, unstable: str) -> None:
    """Tasks that were not finite, nearly constant or ill-conditioned at a GPU's size."""
    assert unstable not in tag_of(load_task(task_id), "structure")


@pytest.mark.parametrize(
    ("family", "backward"),
    [
        (family, backward)
        for family in FAMILIES
        for backward in (False, True)
        if not backward or family not in FORWARD_ONLY
    ],
)
def test_a_generated_task_passes_the_scan(family: str, backward: bool, one_thread: None) -> None:
    task = make_task(family, 5, 0, backward=backward)
    assert Scan(task=task.id, sha256="", **measured(task.source, task.id)).faults == []


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Operators that do nothing


def value(name: str, bounds: Interval = ANY) -> Value:
    return Value(name, Node("x"), ("ROWS", "COLS"), leaf(name=name), bounds=bounds)


BY_NAME = {one.name: one for one in (*UNARY, *SCALARS, *BINARY, *MASKED)}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("square", "abs"),
        ("square", "relu"),
        ("bump", "abs"),
        ("bump", "log1p_abs"),
        ("sigmoid", "decay"),
        ("softplus", "elu"),
        ("tanh", "hardswish"),
        ("decay", "leaky_relu"),
        ("abs", "square"),
        ("abs", "cos"),
        ("log1p_abs", "sigmoid"),
        ("root", "square"),
        ("relu", "relu"),
    ],
)
def test_an_operator_that_another_makes_useless_is_not_drawn(first: str, then: str) -> None:
    inner = pointwise(BY_NAME[first], value("x"))
    assert inner is not None
    constant = BY_NAME[then].constants[0] if BY_NAME[then].constants else None
    assert pointwise(BY_NAME[then], inner, constant=constant) is None


def test_a_clamp_beyond_its_operand_and_a_maximum_of_values_that_never_meet_do_nothing() -> None:
    bounded = pointwise(BY_NAME["tanh"], value("x"))
    positive = pointwise(BY_NAME["root"], value("y"))
    assert bounded is not None
    assert positive is not None
    assert pointwise(BY_NAME["clamp"], bounded, constant=1.5) is None
    assert pointwise(BY_NAME["maximum"], bounded, positive) is None
    assert pointwise(BY_NAME["damp"], bounded, positive) is None


def test_an_absolute_value_that_is_never_needed_in_practice_is_not_drawn() -> None:
    shifted = Value("x", Node("x"), ("N",), grid.Grid([3.0 + one for one in leaf().values], {}))
    assert shifted.bounds == ANY
    assert pointwise(BY_NAME["abs"], shifted) is None


@pytest.mark.parametrize("operator", [*UNARY, *SCALARS, *BINARY, *MASKED, *ELEMENTS], ids=lambda one: one.name)
@settings(max_examples=25)
@given(data=st.data())
def test_results_lie_within_an_operator_s_bounds(operator: Operator, data: st.DataObject) -> None:
    masked = operator in MASKED
    lows = [0.0 if masked and place else data.draw(st.sampled_from([-3.0, -0.5, 0.0, 1.0])) for place in range(2)]
    wide = [data.draw(st.sampled_from([0.5, 2.0])) for _ in range(2)]
    highs = [1.0 if masked and place else low + wide[place] for place, low in enumerate(lows)]
    operands = [Interval(low, high) for low, high in zip(lows, highs, strict=True)]
    count = 1 if operator in (*UNARY, *SCALARS) else 2
    constants = operator.constants[:1]
    lies, _ = bounds.applied(operator.expression, *operands[:count], *(Interval(one, one) for one in constants))
    given_values = [
        data.draw(st.sampled_from([one.low, one.high]) if masked and place else st.floats(one.low, one.high))
        for place, one in enumerate(operands[:count])
    ]
    result = operator.function(*given_values, *constants)
    assert lies.low - 1e-9 <= result <= lies.high + 1e-9


def test_extremes_are_not_taken_where_a_smooth_function_ends() -> None:
    """A cosine's largest value over thousands is one, whatever the inputs."""
    program = Program(Draw("extremes"))
    top = pointwise(BY_NAME["cos"], program.input("x", ("ROWS", "COLS")))
    assert top is not None
    with pytest.raises(UnsuitableError):
        reduced(program, Draw("extreme"), top, "rows", names=("amax",))


# Dtypes and sizes


def test_a_third_of_the_tasks_is_in_each_dtype() -> None:
    counts = Counter(tag_of(task, "dtype") for task in [*forward(), *backward()])
    assert counts.keys() == {"float32", "bfloat16", "float16"}
    assert all(0.26 < count / counts.total() < 0.41 for count in counts.values())


def test_inputs_weights_and_outputs_are_in_the_task_s_dtype() -> None:
    for name in ("matmul_epilogue-5-2", "norm-5-1", "scan-5-0", "loss-5-1", "pooling-5-1"):
        task = load_task(f"generated/{name}")
        names: dict[str, Any] = {}
        exec(compile(task.source, name, "exec"), names)
        model, inputs = names["Model"](*names["get_init_inputs"]()), names["get_inputs"]()
        tensors = [*inputs, *model.parameters(), model(*inputs)]
        found = {one.dtype for one in tensors if one.is_floating_point()}
        assert found == {getattr(torch, tag_of(task, "dtype"))}, name


def test_no_exponential_of_unbounded_values_is_taken_in_float16() -> None:
    for task in forward():
        if tag_of(task, "dtype") == "float16":
            assert "cumprod" not in task.source
            assert "- torch.square(wanted) * " not in task.source


def test_sizes_on_a_gpu_are_those_of_current_models() -> None:
    wide = [task.sizes["cuda"].default for task in forward() if "COLS" in task.sizes["cuda"].default]
    assert sum(size["COLS"] >= 4096 for size in wide) > 0.7 * len(wide)
    for task in load_suite("generated:attention?n=8&seed=11", device="cuda"):
        assert task.sizes["cuda"].default["WIDTH"] in (64, 128)


# Splits by what is heavy, and held-out families


@pytest.mark.slow
def test_no_set_of_heavy_operators_stands_in_two_splits() -> None:
    suite = load_suite("generated?n=96&seed=11&split_by=operators")
    splits: dict[str, set[str]] = {}
    for task in suite:
        splits.setdefault(tag_of(task, "heavy"), set()).add(task.split)
    assert all(len(found) == 1 for found in splits.values())
    assert {split for found in splits.values() for split in found} == {"train", "validation", "test"}
    assert all(task.source == forward()[task.id].source for task in suite)


def test_held_out_families_are_the_test() -> None:
    suite = load_suite("generated:scan+norm+loss+softmax?n=32&seed=11&held_out=scan+norm")
    assert {tag_of(task, "family") for task in suite.test} == {"scan", "norm"}
    assert not {"scan", "norm"} & {tag_of(task, "family") for task in [*suite.train, *suite.validation]}
    assert {task.id for task in suite.train} <= {task.id for task in forward().train}


def test_unknown_held_out_families_are_named() -> None:
    with pytest.raises(UnknownSuiteError, match="unknown family 'scn'; did you mean scan"):
        load_suite("generated?held_out=scn")
