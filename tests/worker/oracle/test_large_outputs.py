"""Large tensors are read in parts, with the same result: no copy of a whole one in float64 beside it."""

from __future__ import annotations

import pytest
import torch
from cudal1_worker.oracle import inputs, tolerance
from cudal1_worker.oracle.tolerance import Draw


def tensors(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    first = torch.randn(count, generator=generator)
    first[::7] = 0.0
    first[3::11] = torch.inf
    return first, first + 1e-3 * torch.randn(count, generator=generator)


@pytest.mark.parametrize("count", [1, 4, 5, 64, 333])
@pytest.mark.parametrize("within", [1e-9, 1e-4, 1e-3, 1e-1])
def test_tensors_are_alike_in_parts_as_they_are_whole(
    monkeypatch: pytest.MonkeyPatch, count: int, within: float
) -> None:
    first, second = tensors(count)
    pairs = [(first, second), (first, first.clone()), (first.nan_to_num(1.0, 2.0), second.nan_to_num(1.0, 2.0))]
    whole = [inputs.alike(*pair, within) for pair in pairs]
    monkeypatch.setattr(inputs, "_PART", 4)
    assert [inputs.alike(*pair, within) for pair in pairs] == whole


@pytest.mark.parametrize("count", [0, 1, 4, 5, 333])
def test_a_draw_in_parts_is_the_draw_of_the_whole(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    answer, other = (one.double() for one in tensors(count)) if count else (torch.empty(0).double(),) * 2
    whole = Draw.of(answer, (answer - other).abs())
    monkeypatch.setattr(tolerance, "_PART", 4)
    found = Draw.of(answer, (answer - other).abs())
    for one, two in ((found.magnitudes, whole.magnitudes), (found.errors, whole.errors)):
        torch.testing.assert_close(one, two, rtol=0.0, atol=0.0, equal_nan=True)
        assert one.dtype == torch.float16
