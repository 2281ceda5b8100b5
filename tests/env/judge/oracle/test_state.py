"""State as a mapping: the matching itself, what a worker says of a module, and programs that name things otherwise."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from cudal1_env.judge import Judge
from cudal1_env.judge.oracle.state import Entry, Mapping, match, parse_fingerprints, parse_state
from cudal1_env.records import Status
from cudal1_worker import layout
from cudal1_worker.oracle import distributions
from cudal1_worker.program import state
from doubles.judges import QUICK
from hypothesis import given
from hypothesis import strategies as st
from task_programs import LINEAR, candidate, reference
from torch import nn

# --- the matching ------------------------------------------------------------------------------------------------

NAMES = st.lists(st.sampled_from(["a", "b", "lin", "norm", "0", "1", "weight", "bias"]), min_size=1, max_size=3).map(
    ".".join
)
SHAPES = st.sampled_from([(2,), (3,), (2, 3), (3, 2)])
VALUES = st.sampled_from(["zeros", "ones", "drawn"])
WRAPPERS = st.sampled_from(["_orig_mod", "module"])


@st.composite
def states(draw: st.DrawFn, names: st.SearchStrategy[str] = NAMES) -> list[Entry]:
    """Some module's state, with names that differ."""
    chosen = draw(st.lists(names, unique=True, max_size=8))
    return [
        Entry(name, draw(SHAPES), draw(st.sampled_from(["float32", "int64"])), draw(st.booleans())) for name in chosen
    ]


def by_name(one: Entry) -> str:
    return one.name


@given(states(), st.randoms())
def test_equal_names_match_in_any_order(reference: list[Entry], random: Random) -> None:
    shuffled = sorted(reference, key=lambda _: random.random())
    mapping = match(reference, shuffled)
    assert mapping == Mapping({one.name: one.name for one in reference})
    assert mapping.note() == ""


@given(states(), st.data())
def test_wrapper_prefixes_in_names_are_ignored(reference: list[Entry], data: st.DataObject) -> None:
    wrapped: list[Entry] = []
    for one in reference:
        parts = one.name.split(".")
        for wrapper in data.draw(st.lists(WRAPPERS, max_size=3)):
            parts.insert(data.draw(st.integers(0, len(parts))), wrapper)
        wrapped.append(replace(one, name=".".join(parts)))
    mapping = match(reference, data.draw(st.permutations(wrapped)))
    assert mapping.pairs == {one.name: other.name for one, other in zip(reference, wrapped, strict=True)}
    assert (mapping.missing, mapping.constructed) == ((), ())


@given(states(), states(st.sampled_from(["b", "other", "w.x", "extra"])), states(), st.data())
def test_additional_state_of_a_candidate_never_breaks_a_mapping(
    reference: list[Entry], candidate: list[Entry], extra: list[Entry], data: st.DataObject
) -> None:
    taken = {one.name for one in candidate}
    more = [*candidate, *(one for one in extra if one.name not in taken)]
    theirs, own = ({one.name: data.draw(VALUES) for one in side} for side in (reference, more))
    missing = set(map(by_name, match(reference, data.draw(st.permutations(more)), (theirs, own)).missing))
    assert missing <= set(map(by_name, match(reference, candidate, (theirs, own)).missing))


@given(states(), st.data())
def test_unmatched_state_is_matched_by_form_and_value_and_ties_by_order(
    reference: list[Entry], data: st.DataObject
) -> None:
    values = {one.name: data.draw(VALUES) for one in reference}
    renamed = [replace(one, name=f"other{k}") for k, one in enumerate(reference)]
    own = {f"other{k}": values[one.name] for k, one in enumerate(reference)}
    order = data.draw(st.permutations(range(len(reference))))
    mapping = match(reference, [renamed[k] for k in order], (values, own))
    assert mapping.missing == ()
    assert set(mapping.guessed) == set(values)

    def key(one: Entry) -> tuple[object, ...]:
        return one.shape, one.dtype, one.parameter, values[one.name]

    for one in reference:
        equal = [k for k, other in enumerate(reference) if key(other) == key(one)]
        place = [reference[k].name for k in equal].index(one.name)
        assert mapping.pairs[one.name] == f"other{[k for k in order if k in equal][place]}"


def entry(name: str, shape: tuple[int, ...] = (2, 3), dtype: str = "float32", *, parameter: bool = True) -> Entry:
    return Entry(name, shape, dtype, parameter)


def test_a_value_alone_or_a_form_alone_is_no_match() -> None:
    weight = entry("weight")
    others = [entry("a", (3, 2)), entry("b", dtype="float64"), entry("c", parameter=False), entry("d")]
    values = {"a": "x", "b": "x", "c": "x", "d": "y"}
    mapping = match([weight], others, ({"weight": "x"}, values))
    assert mapping.missing == (weight,)
    assert mapping.similar == ["d"], "only what could be it is asked for its value"
    assert "weight (float32 parameter of shape [2, 3])" in mapping.refusal()
    assert "with Model's names" in mapping.refusal()
    assert match([weight], [entry("d")], ({"weight": "x"}, {})).missing == (weight,), "a worker that tells no value"


def test_the_same_name_may_be_of_another_kind_but_of_no_other_shape_or_dtype() -> None:
    weight = entry("weight")
    assert match([weight], [entry("weight", parameter=False)]).missing == ()
    assert match([weight], [entry("weight", (6,))]).missing == (weight,)
    assert match([weight], [entry("weight", dtype="bfloat16")]).missing == (weight,)


def test_one_name_of_a_tied_weight_is_enough_and_what_the_judge_leaves_alone_is_not_missed() -> None:
    tied = [entry("embed"), replace(entry("head"), tied_to="embed"), replace(entry("mask"), fixed=True)]
    assert match(tied, [entry("head")]).missing == ()
    assert match(tied, [entry("table")], ({"embed": "x", "head": "x"}, {"table": "x"})).guessed == ("embed",)
    assert match(tied, []).missing == (tied[0],), "named once"


def test_a_message_holds_eight_pairs_of_plain_names() -> None:
    theirs = [entry(f"w{k}", (k,)) for k in range(10)]
    mine = [entry(f"v{k}\n`" + "z" * 200, (k,)) for k in range(10)]
    values = ({one.name: "x" for one in theirs}, {one.name: "x" for one in mine})
    note = match(theirs, mine, values).note()
    assert note.count(" = ") == 1 + 8  # the legend and the pairs
    assert "w7 = v7??zzz" in note
    assert len(note) < 1200
    assert match(theirs, []).refusal().count("float32 parameter") == 8
    assert "and 2 more" in match(theirs, []).refusal()


@pytest.mark.parametrize(
    "told",
    [
        None,
        3,
        "state",
        [["a"]],
        [{"name": "a", "shape": [-1], "dtype": "float32", "parameter": True, "tied_to": None}],
        [{"name": "a", "shape": [2], "dtype": "float32", "parameter": True, "tied_to": 1}],
        [{"name": "a", "shape": [2], "dtype": "float32"}],
    ],
)
def test_a_description_that_is_none_is_an_empty_one(told: object) -> None:
    assert parse_state(told) == ()
    assert parse_fingerprints(told) == {}


# --- in the worker -----------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.ones(3, 3).tril())
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.lazy = nn.LazyLinear(3)


def test_a_module_is_described_by_its_loadable_state() -> None:
    model = Tied()
    told = {one.name: one for one in parse_state(state.described(model))}
    names = ["embed.weight", "head.weight", "mask", "norm.bias", "norm.num_batches_tracked"]
    assert sorted(told) == sorted([*names, "norm.running_mean", "norm.running_var", "norm.weight"])
    assert told["norm.weight"] == Entry("norm.weight", (4,), "float32", True)
    assert told["norm.running_var"] == Entry("norm.running_var", (4,), "float32", False)
    assert {one.name: one.tied_to for one in told.values() if one.tied_to} == {"head.weight": "embed.weight"}
    fixed = [
        name
        for name, value in state.tensors(model).items()
        if distributions.is_fixed(value, value, parameter=isinstance(value, nn.Parameter))
    ]
    assert sorted(fixed) == ["mask", "norm.num_batches_tracked"]
    assert state.described(lambda x: x) == []


def test_state_that_is_not_fixed_gets_another_value() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Embedding(4, 8, padding_idx=0))
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.eye(8))
    held = model.state_dict()
    parameters = {name for name, _ in model.named_parameters()}
    values = distributions.non_default_state(held, 3, parameters=parameters, other=held)
    for name, value in values.items():
        same = torch.equal(value, held[name])
        assert same is distributions.is_fixed(held[name], held[name], parameter=name in parameters), name


def test_a_buffer_with_zeros_is_left_alone_only_where_no_seed_changes_it() -> None:
    filters, drawn, again = (torch.randn(8, 8).fill_diagonal_(0.0) for _ in range(3))
    kept = distributions.non_default_state(
        {"filters": filters, "drawn": drawn}, 3, parameters=set(), other={"filters": filters, "drawn": again}
    )
    assert torch.equal(kept["filters"], filters)
    assert (kept["drawn"].diagonal() == 0.0).all()
    assert int((kept["drawn"] == drawn).sum()) == 8


class Holder(nn.Module):
    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)


def fingerprint(value: torch.Tensor) -> str:
    (found,) = state.fingerprints(Holder(value), ["value"]).values()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_fingerprints_are_those_of_the_values_however_they_lie(dtype: torch.dtype) -> None:
    value = (torch.arange(12).reshape(3, 4) % 5).to(dtype)
    assert fingerprint(value) == fingerprint(value.t().contiguous().t())
    other = value.clone()
    other[1, 2] = 0 if other[1, 2] else 1
    assert fingerprint(value) != fingerprint(other)
    assert fingerprint(value[0, 0]) == fingerprint(value[0, 0].clone())
    assert fingerprint(value[:0]) == fingerprint(torch.empty(0, dtype=dtype))


def test_values_are_loaded_into_the_dtype_that_is_there() -> None:
    model = nn.Linear(3, 2).bfloat16()
    value = torch.randn(2, 3)
    entries, size = layout.manifest([value])
    block = torch.zeros(size, dtype=torch.uint8)
    layout.store(block, entries, [value])
    state.load(model, ["weight"], entries, block)
    assert torch.equal(model.weight, value.bfloat16())


# --- judged ------------------------------------------------------------------------------------------------------


LIN, NORM = "self.lin = nn.Linear(128, 64)", "self.norm = nn.LayerNorm(64)"


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        (f"{NORM}; {LIN}", "self.norm(self.lin(x[0]))"),
        (f"{LIN}; {NORM}; self.register_buffer('kept', torch.ones(9))", "self.norm(self.lin(x[0]))"),
        ("self.first = nn.Linear(128, 64); self.second = nn.LayerNorm(64)", "self.second(self.first(x[0]))"),
        (
            "self.module = nn.ModuleDict({'lin': nn.Linear(128, 64), 'norm': nn.LayerNorm(64)})",
            "self.module['norm'](self.module['lin'](x[0]))",
        ),
    ],
    ids=["other order", "extra buffer", "other names", "wrapped"],
)
def test_the_judges_weights_reach_programs_that_name_or_order_state_otherwise(
    judge: Judge, init: str, forward: str
) -> None:
    one = judge.evaluate(LINEAR, candidate(f"return {forward}", init=init), precision="correct")
    assert (one.status, one.weights) == (Status.CORRECT, "loaded"), one.message


@pytest.mark.parametrize(
    "init",
    [
        f"self.lin = None; {NORM}",
        f"self.weights = [nn.Linear(128, 64)]; {NORM}",
        f"self.lin = nn.LazyLinear(64); {NORM}",
        f"{NORM}; self.weight = nn.Parameter(nn.Linear(128, 64).weight.t().contiguous())",
    ],
    ids=["made in forward", "not registered", "lazy", "transposed"],
)
def test_a_program_without_the_references_state_is_rejected_with_its_names(judge: Judge, init: str) -> None:
    one = judge.evaluate(LINEAR, candidate("return self.norm(x[0][:, :64])", init=init), precision="correct")
    assert one.status is Status.WRONG_CONTRACT
    assert "lin.weight (float32 parameter of shape [64, 128])" in one.message
    assert "in ModelNew's constructor" in one.message
    assert "norm.weight" not in one.message


def test_an_incorrect_output_under_a_guessed_mapping_shows_the_mapping(judge: Judge) -> None:
    init = "self.first = nn.Linear(128, 64); self.second = nn.LayerNorm(64); self.stale = nn.Parameter(torch.ones(3))"
    guessed = candidate("return self.second(self.first(x[0])) + 1", init=init)
    one = judge.evaluate(LINEAR, guessed, precision="correct")
    assert one.status is Status.WRONG_OUTPUT
    assert "lin.weight = first.weight, lin.bias = first.bias, norm.weight = second.weight" in one.message
    assert "kept the constructor's values: stale" in one.message
    named = candidate("return self.norm(self.lin(x[0])) + 1", init=f"{LIN}; {NORM}")
    plain = judge.evaluate(LINEAR, named, precision="correct")
    assert plain.status is Status.WRONG_OUTPUT
    assert "ModelNew" not in plain.message


def test_tied_weights_may_be_one_tensor_or_two_names(judge: Judge) -> None:
    once = "self.b = nn.Linear(96, 96, bias=False)"
    init = f"self.a = nn.Linear(96, 96, bias=False); {once}; self.b.weight = self.a.weight"
    task = reference("return self.b(self.a(x[0]).relu())", "[torch.randn(64, 96)]", init=init)
    task = task.model_copy(update={"id": "file/tied"})
    for start, forward in ((init, "self.b(self.a(x[0]).relu_())"), (once, "self.b(self.b(x[0]).relu_())")):
        one = judge.evaluate(task, candidate(f"return {forward}", init=start), precision="correct")
        assert one.status is Status.CORRECT, one.message


def test_kernelbenchs_verdict_is_recorded_and_is_not_the_status() -> None:
    plain = reference("return self.norm(x[0])", "[torch.randn(64, 96)]", init="self.norm = nn.LayerNorm(96)")
    plain = plain.model_copy(update={"id": "file/norm"})
    left_out = candidate("return nn.functional.layer_norm(x[0], (96,))")
    coarse = candidate("return self.norm(x[0]) * 1.00003", init="self.norm = nn.LayerNorm(96)")
    wrong = candidate("return self.norm(x[0]) * 1.01", init="self.norm = nn.LayerNorm(96)")
    raising = candidate("raise ValueError('no')", init="self.norm = nn.LayerNorm(96)")
    expected = [
        (left_out, Status.WRONG_CONTRACT, Status.CORRECT, 5),
        (coarse, Status.WRONG_OUTPUT, Status.CORRECT, 5),
        (wrong, Status.WRONG_OUTPUT, Status.WRONG_OUTPUT, 0),
        (raising, Status.RUNTIME_ERROR, Status.RUNTIME_ERROR, 0),
    ]
    with Judge(QUICK.model_copy(update={"policy": "kernelbench"})) as one:
        for source, status, second, passed in expected:
            record = one.evaluate(plain, source)
            assert record.status is status, record.message
            assert record.kernelbench is not None
            assert (record.kernelbench.status, record.kernelbench.passed) == (second, passed), record.kernelbench
            assert type(record).model_validate_json(record.model_dump_json()) == record
