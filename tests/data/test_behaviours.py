"""Decontamination by behaviour: rewrites of a function are found, look-alikes are not."""

from __future__ import annotations

import pytest
from cudal1_data.dedup import find_overlaps
from cudal1_data.dedup.behaviours import Behaviours
from cudal1_data.tracing import Tracer
from hypothesis import given
from hypothesis import strategies as st
from rewrites import LOOK_ALIKES, ONE, OTHER, REWRITES, Body, task

# With the operator graph beside it, what is measured here is what `near_duplicates` goes by.


def found(tracer: Tracer, pair: tuple[Body, Body]) -> str:
    """Return what shows that a program is another one: `graph`, `behaviour`, or nothing."""
    one, other = (
        tracer.trace(task(name, body, sizes)) for name, body, sizes in zip("ab", pair, (ONE, OTHER), strict=True)
    )
    (*_, overlap) = [None, *find_overlaps(("mine", [other]), ("test", [one])).overlaps]
    return overlap.by if overlap else ""


FEW = 3
"""Pairs of each kind in the tests that always run: the rewrites that operator graphs alone missed."""


def test_rewrites_are_found(tracer: Tracer) -> None:
    assert [name for name, pair in list(REWRITES.items())[:FEW] if found(tracer, pair) != "behaviour"] == []


def test_look_alikes_are_not(tracer: Tracer) -> None:
    assert [name for name, pair in list(LOOK_ALIKES.items())[-FEW:] if found(tracer, pair)] == []


@pytest.mark.slow
def test_all_rewrites_are_found_and_no_look_alike(tracer: Tracer) -> None:
    assert len(REWRITES) == len(LOOK_ALIKES) == 52
    assert [name for name, pair in REWRITES.items() if not found(tracer, pair)] == []
    assert [name for name, pair in LOOK_ALIKES.items() if found(tracer, pair)] == []


@pytest.mark.parametrize(
    "body",
    [
        Body("F.dropout(x, 0.5)"),
        Body("x * 0.0"),
        Body("torch.log(x)"),
        Body("torch.nonsense(x)"),
    ],
    ids=["random", "zero", "not a number", "does not run"],
)
def test_programs_that_tell_nothing_have_no_behaviour(tracer: Tracer, body: Body) -> None:
    assert tracer.trace(task("alone", body, {"N": 12, "M": 20})).behaviour == ()


def test_precision_and_names_make_no_difference(tracer: Tracer) -> None:
    one = Body("F.softplus(self.scale * x)", members="scale = nn.Parameter(torch.ones(M))")
    half = Body(
        "F.softplus(self.s.float() * x.float()).half()",
        "x = torch.randn(N, M).half()",
        "s = nn.Parameter(torch.zeros(M, dtype=torch.float16))",
    )
    first, second = (tracer.trace(task("one", body, ONE)).behaviour for body in (one, half))
    assert Behaviours([("one", first)]).find(second) == ("one",)


def test_sizes_written_as_arithmetic_or_in_one_assignment_are_sizes(tracer: Tracer) -> None:
    plain = task("plain", Body("torch.softmax(x, 1) @ y", "x = torch.randn(N, M); y = torch.randn(M, N)"), ONE)
    sizes = "N = 96\nM = 160\n"
    assert sizes in plain.source
    for other in ("N = 16384 * 2\nM = 2 * (4096 - 96)\n", "N, M = 1024 * 8, 4096 // 2 + 5\n", "M = N = 32768\n"):
        same = plain.model_copy(update={"source": plain.source.replace(sizes, other)})
        assert Behaviours([("plain", tracer.trace(plain).behaviour)]).find(tracer.trace(same).behaviour) == ("plain",)


NUMBERS = st.lists(st.floats(-4, 4), min_size=2, max_size=6).map(tuple)


@pytest.mark.slow
@given(NUMBERS, st.integers(0, 5), st.floats(1e-3, 1.0))
def test_one_number_that_differs_is_enough(told: tuple[float, ...], place: int, by: float) -> None:
    place %= len(told)
    other = (*told[:place], told[place] + 4 * by, *told[place + 1 :])
    assert Behaviours([("a", (told,))]).find((other, told)) == ("a",)
    assert Behaviours([("a", (told,))]).find((other,)) == ()
