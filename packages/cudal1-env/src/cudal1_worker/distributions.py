"""Where a task's inputs and weights get values that a candidate cannot know.

Each transformation keeps what a program may rightly rely on: zeros stay zero (triangular and masked inputs), signs
stay where all were positive, [0, 1] stays [0, 1], symmetric matrices stay symmetric, rows that sum to one still do,
and tensors of few distinct values (labels, masks) are left alone.
"""

from __future__ import annotations

from typing import Any

import torch

NAMES = ("own", "shifted", "heavy", "needle")
"""`own`: the task's values; `shifted`: another scale and mean; `heavy`: magnitudes over several decades; `needle`:
one element outweighs all others."""

_CATEGORICAL = 16


def transform(values: list[Any], name: str, seed: int) -> list[Any]:
    """Move input values to a distribution.

    Args:
        values: What `get_inputs` returned; only floating-point tensors change.
        name: One of `NAMES`.
        seed: Seed of the transformation.

    Raises:
        ValueError: The name is unknown.
    """
    if name not in NAMES:
        raise ValueError(f"expected one of {NAMES}, got {name!r}")
    if name == "own":
        return values
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    generator = torch.Generator(tensors[0].device if tensors else "cpu").manual_seed(seed)
    return [_moved(v, name, generator) if is_movable(v) else v for v in values]


def is_movable(value: Any) -> bool:
    """Whether a value is a tensor whose values may become others: finite floating-point numbers, many of them."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() < 2:
        return False
    return bool(value.isfinite().all()) and value.flatten()[:4096].unique().numel() > min(
        _CATEGORICAL, value.numel() // 2
    )


def is_unit(x: torch.Tensor) -> bool:
    """Whether all values lie in [0, 1]."""
    return float(x.min()) >= 0.0 and float(x.max()) <= 1.0


def is_symmetric(x: torch.Tensor) -> bool:
    """Whether a tensor consists of symmetric matrices."""
    return x.ndim >= 2 and x.shape[-1] == x.shape[-2] and torch.equal(x, x.mT)


def rows_sum_to_one(x: torch.Tensor) -> bool:
    """Whether each row (last dimension) of a floating-point tensor sums to one."""
    return x.ndim >= 1 and torch.allclose(x.sum(-1), torch.ones((), dtype=x.dtype, device=x.device), atol=1e-4)


def _moved(value: torch.Tensor, name: str, generator: torch.Generator) -> torch.Tensor:
    x = value.double()
    kept = x != 0
    # Asked for at once: on a GPU each number that is waited for takes longer than what it is computed from.
    low, high, spread = torch.stack([x.min(), x.max(), x.std()]).tolist()
    unit = low >= 0.0 and high <= 1.0
    if name == "shifted":
        y = x.sqrt() if unit else 1.5 * x + (0.25 if low >= 0.0 else 0.5) * spread
    elif name == "heavy":
        factor = torch.randn(x.shape, generator=generator, dtype=torch.float64, device=x.device).mul_(1.2).exp_()
        y = x.pow(4) if unit else x * factor
    else:
        y = (0.25 * x).contiguous()
        place = torch.randint(x.numel(), (1,), generator=generator, device=x.device)
        y.view(-1).index_fill_(0, place, 1.0 if unit else 40.0 * spread)
    y = torch.where(kept, y, x)
    if is_symmetric(x):
        y = (y + y.mT) / 2
    if unit and rows_sum_to_one(x):
        y = y / y.sum(-1, keepdim=True)
    out = torch.empty_like(value)
    return out.copy_(y)


def non_default_state(state: dict[str, torch.Tensor], seed: int, *, parameters: set[str]) -> dict[str, torch.Tensor]:
    """Return values for a module's state that differ from every default.

    Ones (scales) become 1 + 0.2 n, zeros (biases, running means) 0.1 n, constant positive statistics stay positive,
    other weights get noise of half their spread. Integers (counters) stay.

    Args:
        state: `state_dict()` of a fresh module.
        seed: Seed of the values.
        parameters: Names of what is trained: nothing is left as it was, not even zeros (an identity is a default too).
    """
    generator = torch.Generator().manual_seed(seed)
    result: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            continue
        value = value.cpu()
        if not value.is_floating_point() or value.numel() == 0:
            result[name] = value.clone()
            continue
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        x = value.double()
        if bool((x == 0).all()):
            y = 0.1 * noise
        elif bool((x == x.flatten()[0]).all()):
            y = x * (1.0 + 0.2 * noise.clamp(-3, 3))
        elif name not in parameters and (bool((x == 0).any()) or x.unique().numel() < x.numel() // 4):
            y = x.clone()  # structured: a mask, an index
        else:
            y = x + 0.5 * x.std() * noise
        result[name] = y.to(value.dtype)
    return result
