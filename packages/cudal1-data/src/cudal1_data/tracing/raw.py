"""Traced operators as plain JSON values."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Ref = dict[str, int]
"""`{"node": 3}`: the value of node 3; the only dictionaries among arguments."""


class RawNode(BaseModel):
    """One operator, input or constant."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    op: str
    """torch's name without its overload (`prims.add`), or `input`, `state`, `constant`, `getitem`."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Arguments by name: numbers, texts, lists of these, and `Ref` for values of other nodes."""
    shape: tuple[int, ...] | None = None
    """Shape of its output tensor; None for several outputs or none."""
    dtype: str = ""
    """Element type of that tensor."""
    unit: bool = False
    """Whether its last two dimensions are unit matrices for all inputs."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, empty if there is none."""
        return self.shape or ()


class RawGraph(BaseModel):
    """The graph of one call of a reference."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    nodes: tuple[RawNode, ...]
    """Nodes in execution order: arguments come before their users."""
    outputs: tuple[Ref | float | None, ...]
    """Outputs of the call, flattened."""
    inputs_bytes: int = Field(ge=0)
    """Size of the inputs."""
    state_bytes: int = Field(ge=0)
    """Size of parameters and buffers."""
    outputs_bytes: int = Field(ge=0)
    """Size of the outputs."""
