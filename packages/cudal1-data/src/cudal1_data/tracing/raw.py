"""Operators as the tracer found them: what crosses from the child process, as plain JSON values."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Ref = dict[str, int]
"""`{"node": 3}`: the value that node 3 makes; the only dictionaries among arguments."""


class RawNode(BaseModel):
    """One operator, input or constant."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    op: str
    """torch's name without its overload (`prims.add`), or `input`, `state`, `constant`, `getitem`."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Arguments by name: numbers, texts, lists of these, and `Ref` for what other nodes make."""
    shape: tuple[int, ...] | None = None
    """Sizes of the tensor that it makes; None where it makes several, or none."""
    dtype: str = ""
    """Element type of that tensor."""
    unit: bool = False
    """Whether it is a unit matrix in its last two dimensions, or several, whatever the inputs."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, empty where there is none."""
        return self.shape or ()


class RawGraph(BaseModel):
    """One call of a reference."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    nodes: tuple[RawNode, ...]
    """In the order in which they ran: arguments come before their users."""
    outputs: tuple[Ref | float | None, ...]
    """What the call returns, flattened."""
    inputs_bytes: int = Field(ge=0)
    """Size of the inputs."""
    state_bytes: int = Field(ge=0)
    """Size of parameters and buffers."""
    outputs_bytes: int = Field(ge=0)
    """Size of the outputs."""
