"""Reference programs that are run in this process."""

from __future__ import annotations

from typing import Any

import torch


def outputs(source: str) -> tuple[list[torch.Tensor], list[torch.Size]]:
    """Return a trusted reference's outputs on seeded inputs and parameters, and the shapes of its parameters."""
    names: dict[str, Any] = {"__name__": "reference"}
    torch.manual_seed(0)
    exec(source, names)
    model, inputs = names["Model"](*names["get_init_inputs"]()), names["get_inputs"]()
    with torch.no_grad():
        found = model(*inputs)
    return (list(found) if isinstance(found, tuple | list) else [found]), [one.shape for one in model.parameters()]
