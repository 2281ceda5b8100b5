"""A module's state in the worker: describing it, fingerprinting it, loading the judge's values."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import torch

from cudal1_worker import layout


def tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a module's `state_dict()`, with parameters undetached; empty for anything else.

    Lazy parameters are left out: they have no shape before the first call, so they cannot be loaded.
    """
    if not isinstance(model, torch.nn.Module):
        return {}
    return {
        name: value
        for name, value in model.state_dict(keep_vars=True).items()
        if isinstance(value, torch.Tensor) and not torch.nn.parameter.is_lazy(value)
    }


def described(model: Any, fixed: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the fields of `cudal1_env.judge.oracle.state.Entry` for each tensor of a module's state, in order."""
    first: dict[tuple[Any, ...], str] = {}
    rows: list[dict[str, Any]] = []
    for name, value in tensors(model).items():
        dtype = str(value.dtype).removeprefix("torch.")
        # Tensors without elements have no memory.
        lies = (value.data_ptr(), tuple(value.shape), value.stride(), dtype) if value.numel() else (name,)
        same = first.setdefault(lies, name)
        parameter = isinstance(value, torch.nn.Parameter)
        row = {"name": name, "shape": list(value.shape), "dtype": dtype, "parameter": parameter, "fixed": name in fixed}
        rows.append(row | {"tied_to": None if same == name else same})
    return rows


def fingerprints(model: Any, names: Sequence[str]) -> dict[str, str]:
    """Return a hash of the bytes of each named tensor of a module's state, in C order of its shape."""
    state = tensors(model)
    result: dict[str, str] = {}
    for name in names:
        value = state[name].detach().cpu().contiguous()
        size = value.numel() * value.element_size()
        data = (ctypes.c_ubyte * size).from_address(value.data_ptr()) if size else b""
        result[name] = hashlib.blake2b(data, digest_size=16).hexdigest()
    return result


def load(model: Any, names: Sequence[str], entries: Sequence[layout.Entry], block: torch.Tensor) -> None:
    """Copy values from a block into tensors of a module's state, which keep their dtype."""
    state = tensors(model)
    with torch.no_grad():
        for name, entry in zip(names, entries, strict=True):
            state[name].copy_(layout.view(block, entry))
