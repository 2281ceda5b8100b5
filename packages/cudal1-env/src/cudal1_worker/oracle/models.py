"""A reference in several precisions, with its inputs converted to match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Models:
    """A reference in several precisions, with the same weights."""

    plain: Any
    """The reference in its own precision."""
    wide: Any
    """In float64."""
    narrow: Any
    """In float32; None where no output is in float64."""


def copied(values: list[Any]) -> list[Any]:
    """Inputs with tensors of their own."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def as_dtype(value: Any, dtype: torch.dtype) -> Any:
    """A floating-point tensor or a module in a dtype, also in plain lists, tuples and dicts; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, torch.nn.Module):
        for module in value.to(dtype).modules():
            for name, one in vars(module).items():
                if not name.startswith("_") and not isinstance(one, torch.nn.Module):  # those are torch's own
                    vars(module)[name] = as_dtype(one, dtype)
        return value
    if type(value) in (list, tuple):
        return type(value)(as_dtype(one, dtype) for one in value)
    if type(value) is dict:
        return {key: as_dtype(one, dtype) for key, one in value.items()}
    return value


def aliases(output: torch.Tensor, values: list[Any]) -> bool:
    """Whether an output lies in the memory of an input."""
    start = output.untyped_storage().data_ptr()
    return any(isinstance(v, torch.Tensor) and v.numel() and v.untyped_storage().data_ptr() == start for v in values)
