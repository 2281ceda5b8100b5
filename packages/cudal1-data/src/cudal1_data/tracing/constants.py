"""Tensors of a traced call that do not depend on inputs, and are one number everywhere or a unit matrix.

Operators on tensors that a program creates (`arange`, `ones`, `eye`, masks of these) are executed here. `fold.py` then
resolves a choice by such a condition, and replaces a product with a unit matrix by the other factor. This module
imports torch: only `tracer.py` imports it, in a separate process.
"""

# torch's private modules have no types.
# pyright: basic

from __future__ import annotations

from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

MAX_ELEMENTS = 1 << 24
"""Larger tensors, and those computed from them, are not evaluated."""
SHAPED = ("full_like", "zeros_like", "ones_like", "new_full", "new_zeros", "new_ones")
"""Operators whose result does not depend on their tensor's values."""

Kind = float | Literal["unit"]
"""One number everywhere, or unit matrices in the last two dimensions."""


def constants(traced: torch.fx.GraphModule) -> dict[torch.fx.Node, Kind]:
    """Return the kind of each constant tensor: one that depends on no input.

    Args:
        traced: Operators that change nothing in place.
    """
    values: dict[torch.fx.Node, torch.Tensor] = {}
    waiting: dict[torch.fx.Node, int] = {}
    found: dict[torch.fx.Node, Kind] = {}
    with unset_fake_temporarily(), torch.no_grad():
        for node in traced.graph.nodes:
            if (value := _value(traced, node, values)) is not None:
                values[node], waiting[node] = value, len(node.users)
                if (kind := _kind(value)) is not None:
                    found[node] = kind
            for taken in node.all_input_nodes:
                if taken in waiting:
                    waiting[taken] -= 1
                    if not waiting[taken]:
                        del values[taken]
    return found


def _value(
    traced: torch.fx.GraphModule, node: torch.fx.Node, values: dict[torch.fx.Node, torch.Tensor]
) -> torch.Tensor | None:
    """Return a node's value if it is known to depend on no input, else None."""
    if node.op == "get_attr":
        value = getattr(traced, str(node.target))
        return value if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) else None
    seen = node.meta.get("val")
    if node.op != "call_function" or not isinstance(seen, torch.Tensor) or seen.numel() > MAX_ELEMENTS:
        return None
    target: Any = node.target
    name = str(getattr(target, "overloadpacket", target)).rpartition(".")[2]
    if "empty" in name or torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
        return None
    if name in SHAPED:
        taken = {one: torch.empty(seen.shape, dtype=seen.dtype) for one in node.all_input_nodes}
    elif all(one in values for one in node.all_input_nodes):
        taken = values
    else:
        return None
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), taken.__getitem__)
    try:
        value = target(*args, **kwargs)
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return None  # torch cannot execute it as traced: it stays an operator
    return value if isinstance(value, torch.Tensor) else None


def _kind(value: torch.Tensor) -> Kind | None:
    if value.numel() == 0 or value.is_complex():
        return None
    first = value.reshape(-1)[0]
    if bool((value == first).all()):
        return float(first)
    square = value.ndim >= 2 and value.shape[-1] == value.shape[-2]
    return "unit" if square and bool((value == torch.eye(value.shape[-1], dtype=value.dtype)).all()) else None
