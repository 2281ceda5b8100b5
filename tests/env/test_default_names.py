"""What of a model a constructor fills with defaults, and what only looks like it by chance."""

from __future__ import annotations

import pytest
import torch
from cudal1_worker.oracle import default_names


class Holder(torch.nn.Module):
    """One parameter."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(value)


def with_zeros(count: int) -> torch.Tensor:
    value = torch.rand(400, 370, generator=torch.Generator().manual_seed(0)) - 0.5
    value.view(-1)[torch.arange(count) * 1009] = 0.0
    return value


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (torch.ones(8), True),
        (torch.zeros(8), True),
        (torch.eye(2), True),
        (torch.eye(64), True),
        (torch.cat([torch.zeros(1, 64), torch.ones(1000, 64).cumsum(0)]), True),  # a row of padding
        (torch.ones(64, 64).cumsum(0).triu(), True),
        (torch.ones(64, 64).cumsum(0), False),
        (with_zeros(0), False),
        (with_zeros(1), False),
        (with_zeros(8), True),
        (torch.rand(400, 370, generator=torch.Generator().manual_seed(0)).bfloat16().sub(0.5), False),
    ],
)
def test_zeros_are_defaults_where_chance_does_not_make_as_many(value: torch.Tensor, found: bool) -> None:
    assert default_names(Holder(value)) == (["value"] if found else [])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_random_weights_are_no_defaults(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert default_names(torch.nn.Linear(1024, 1024, dtype=dtype)) == []


def test_buffers_may_hold_zeros() -> None:
    norm = torch.nn.BatchNorm1d(4, affine=False)
    norm.running_mean = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert default_names(norm) == ["running_var"]
