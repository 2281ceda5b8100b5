"""Other values for inputs keep what a program may rely on, which a few draws tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cudal1_worker.oracle.distributions import NAMES, nature_of, transform

KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "normal": lambda: torch.randn(40, 60),
    "unit": lambda: torch.rand(40, 60),
    "positive": lambda: 3.0 * torch.rand(40, 60) + 0.5,
    "rows that sum to one": lambda: torch.softmax(torch.randn(40, 60), -1),
    "symmetric": lambda: (lambda x: x + x.mT)(torch.randn(50, 50)),
    "ascending": lambda: torch.randn(40, 60).sort().values,
    "triangular": lambda: torch.randn(50, 50).tril(),
    "half": lambda: torch.randn(40, 60).bfloat16(),
    "labels": lambda: torch.randint(0, 10, (400,)).float(),
    "whole numbers": lambda: torch.randint(0, 10, (400,)),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_earlier_draws_predict_later_ones(kind: str, name: str) -> None:
    torch.manual_seed(0)
    earlier, later = nature_of(KINDS[kind]()) & nature_of(KINDS[kind]()), KINDS[kind]()
    (told,), (asked,) = transform([later], name, 5, [earlier]), transform([later], name, 5)
    assert torch.equal(told, asked)
    assert (told.dtype, told.stride()) == (later.dtype, later.stride())
    if kind in ("labels", "whole numbers") or name == "own":
        assert torch.equal(told, later)
        return
    assert not torch.equal(told, later)
    assert told.isfinite().all()
    assert torch.equal(told == 0, later == 0)
    if kind in ("unit", "positive", "rows that sum to one"):
        assert told.min() >= 0
    if kind in ("unit", "rows that sum to one"):
        assert told.max() <= 1
    if kind == "rows that sum to one":
        assert torch.allclose(told.sum(-1), torch.ones(40), atol=1e-4)
    if kind == "ascending":
        assert torch.equal(told, told.sort().values)
    if kind == "symmetric":
        assert torch.equal(told, told.mT)


def test_chance_properties_of_one_draw_are_not_kept() -> None:
    chance, usual = nature_of(torch.tensor([0.25, 0.75])), nature_of(torch.tensor([-1.0, 0.5]))
    assert chance.unit
    assert chance.positive
    assert not (chance & usual).unit
    assert not (chance & usual).positive


def test_other_numbers_of_values_are_looked_at_anew() -> None:
    values = [torch.randn(30, 30), torch.rand(30, 30)]
    natures = [nature_of(values[0])]
    told, asked = transform(values, "needle", 1, natures), transform(values, "needle", 1)
    assert all(torch.equal(a, b) for a, b in zip(told, asked, strict=True))


def test_a_sample_of_a_set_with_a_needle_is_as_usual() -> None:
    x = torch.randn(4096)
    moved = transform([x], "needle", 3)[0]
    assert (moved != x).sum() == 1
    assert moved.max() > 30.0
