"""Replies of an oracle to the judge, parsed into bounded values.

A task may be a stranger's text, and it runs in the process that sends these answers. The judge believes none of them:
`OracleClient.ask` parses each by the model that belongs to the request, or as a `Failure`. What depends on the contents
of the request, such as the number of sets, is checked where the request is made.
"""

from __future__ import annotations

import base64
import json
import math
from functools import cached_property
from typing import Annotated, Any, Self, cast

from cudal1_worker import protocol as wire
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from cudal1_env.errors import printable
from cudal1_env.judge.device.tensors import Dtype, Expected, Size, Sizes, item_bytes
from cudal1_env.judge.oracle.state import Entry, Fingerprints

_MAX_DEPTH = 64
"""Maximum nesting of a constructor argument."""
_MAX_CHARS = 4200
"""Kept characters of a text; the worker sends 4,000 and a line number."""
_MESSAGE_BYTES = wire.MAX_MESSAGE_BYTES - (1 << 16)
"""Maximum size of what an arm gets from an answer; the rest of its message fits beside it."""


def _decodable(value: Any) -> Any:
    """Return a value if `cudal1_worker.layout.decode` can decode it; raise ValueError if not."""
    _check_encoded(value, _MAX_DEPTH, is_key=False)
    return value


def _check_encoded(value: Any, depth: int, *, is_key: bool) -> None:
    if not isinstance(value, dict | list):
        return
    parts = {} if isinstance(value, list) else cast("dict[str, Any]", value)
    kind = next(iter(parts)) if len(parts) == 1 else "array"
    if kind == "tuple" or (kind == "list" and not is_key):
        for item in _list_in(parts, kind, depth):
            _check_encoded(item, depth - 1, is_key=is_key)
    elif kind == "dict" and not is_key:
        for key, item in map(_pair_of, _list_in(parts, kind, depth)):
            _check_encoded(key, depth - 1, is_key=True)
            _check_encoded(item, depth - 1, is_key=False)
    elif kind == "dtype":
        if parts[kind] not in wire.DTYPES:
            raise ValueError("expected a dtype of the protocol")
    else:
        _Array.model_validate(parts)


def _list_in(parts: dict[str, Any], kind: str, depth: int) -> list[Any]:
    if not isinstance(parts[kind], list) or not depth:
        raise ValueError(f"expected a list, nested at most {_MAX_DEPTH} times")
    return parts[kind]


def _pair_of(item: Any) -> tuple[Any, Any]:
    pair = cast("list[Any]", item) if isinstance(item, list) else []
    if len(pair) != 2:
        raise ValueError("expected pairs of key and value")
    return pair[0], pair[1]


Text = Annotated[str, AfterValidator(lambda text: printable(text[:_MAX_CHARS]))]
_Encoded = Annotated[Any, AfterValidator(_decodable)]
_Number = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class _Reply(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Array(_Reply):
    """A tensor as an argument."""

    array: str
    of: Dtype
    shape: Sizes

    @model_validator(mode="after")
    def _has_size(self) -> Self:
        if self.of not in wire.DTYPES:
            raise ValueError("expected a dtype of the protocol")
        if len(base64.b64decode(self.array)) != math.prod(self.shape) * item_bytes(self.of):
            raise ValueError("expected the bytes of each element")
        return self


class Done(_Reply):
    """An answer that says only that a request was carried out."""


class Failure(_Reply):
    """The reference failed in a request."""

    error: str
    """Kind; `memory` is one."""
    text: Text


class _Tensor(_Reply):
    """A dense tensor in a block of bytes (`cudal1_worker.layout.manifest`)."""

    dtype: Dtype
    shape: Sizes
    strides: Sizes
    offset: Size
    bytes: Size

    @model_validator(mode="after")
    def _is_dense(self) -> Self:
        if self.dtype not in wire.DTYPES:
            raise ValueError("expected a dtype of the protocol")
        if len(self.strides) != len(self.shape):
            raise ValueError("expected a stride for each dimension")
        count = math.prod(self.shape)
        span = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        if self.bytes != count * item_bytes(self.dtype) or (count and span != count):
            raise ValueError("expected a dense tensor and its size")
        return self


class _TensorEntry(_Reply):
    model_config = ConfigDict(frozen=True, extra="forbid")
    tensor: _Tensor


class _ValueEntry(_Reply):
    model_config = ConfigDict(frozen=True, extra="forbid")
    value: _Encoded


class _Block(_Reply):
    """Values, and a block of bytes with the tensors among them."""

    entries: list[_TensorEntry | _ValueEntry]
    size_bytes: Size

    @model_validator(mode="after")
    def _is_filled(self) -> Self:
        """Check that tensors lie one after another, each on a page of its own, and fill the block."""
        offset = 0
        for entry in self.entries:
            if isinstance(entry, _TensorEntry):
                if entry.tensor.offset != offset:
                    raise ValueError("expected tensors one after another")
                offset += -(-entry.tensor.bytes // wire.ALIGNMENT) * wire.ALIGNMENT
        if self.size_bytes != max(offset, wire.ALIGNMENT):
            raise ValueError("expected the size of the tensors together")
        return self

    @cached_property
    def layout(self) -> list[dict[str, Any]]:
        """The entries, as workers get them."""
        return [entry.model_dump() for entry in self.entries]


def _check_sendable(*values: Any) -> None:
    """Raise ValueError unless the values fit into a message to an arm."""
    if len(json.dumps(values)) > _MESSAGE_BYTES:
        raise ValueError("expected values that fit into a message")


class IoSpec(_Block):
    """I/O specification of a task: shapes, dtypes and bytes of its inputs (the block), arguments, state and outputs.

    See `cudal1_worker.oracle.description.describe`.
    """

    arguments: _Encoded
    """Constructor arguments, encoded (see `cudal1_worker.layout.encode`)."""
    state: tuple[Entry, ...]
    """The tensors of the reference's state, in order of registration."""
    outputs: tuple[Expected, ...]
    """Shape, dtype and aliasing of each output."""
    work_bytes: Size
    """Peak GPU memory of a call of the reference, including its outputs."""
    constant_inputs: tuple[Size, ...]
    """Positions of input tensors that are the same under different seeds; their values are not secret."""
    seeded: tuple[Text, ...]
    """Tensors that the reference's constructor draws and keeps outside its state. The judge cannot replace them, so a
    program may exploit their structure."""
    changed: tuple[Text, ...]
    """Tensors of the reference's state that its calls change, except those of batch norms."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_sendable(self.arguments, self.layout)
        if not {*self.constant_inputs} <= {*range(len(self.entries))}:
            raise ValueError("expected positions of inputs")
        return self

    @property
    def input_bytes(self) -> int:
        """Size of an input set's inputs."""
        return self.size_bytes

    @property
    def tensor_bytes(self) -> list[int]:
        """Size of each input tensor."""
        return [entry.tensor.bytes for entry in self.entries if isinstance(entry, _TensorEntry)]

    @property
    def state_bytes(self) -> int:
        """Maximum size of the reference's state: eight bytes for each element."""
        return 8 * sum(math.prod(entry.shape) for entry in self.state)

    @property
    def written_bytes(self) -> int:
        """Size of all outputs that do not alias inputs."""
        return sum(out.size * out.item_bytes for out in self.outputs if not out.aliases)


class Stored(_Block):
    """Weights that the oracle writes on request; see `Weights`."""

    names: list[str]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.names) != len(self.entries) or len({*self.names}) != len(self.names):
            raise ValueError("expected a name for each tensor")
        _check_sendable(self.names, self.layout)
        return self


class Report(_Reply):
    """What the oracle finds about one output of a set (`cudal1_worker.oracle.reference_error.REPORTED`)."""

    scale: _Number
    reference_error: _Number
    masks_differ: _Number
    bulk: _Number | None
    """See `Answer.bulk`."""


class Made(_Reply):
    """Input sets that the oracle has written: a report on each output of each set."""

    reports: list[list[Report]]


class Fingerprinted(_Reply):
    """Hashes of the reference's state, by name."""

    fingerprints: Fingerprints


class Recurring(_Reply):
    """See `cudal1_worker.oracle.recurrence.recurrence`."""

    outputs: list[Annotated[_Number, Field(le=2.0)]]
    inputs: list[Size]
    fixed: list[Size]


class Unseen(_Reply):
    """Work that a program could omit undetected; empty if none was found."""

    work: Text
    tried: StrictBool


class Faulty(_Reply):
    """Why a run with a fault failed; empty if it did not."""

    failed: Text


class Step(_Reply):
    """One step of the reference's forward pass (`cudal1_worker.oracle.faults.Step`)."""

    name: Text
    shapes: list[Sizes]
    faults: list[Text]


class Steps(_Reply):
    """The steps of the reference's forward pass, in order."""

    steps: list[Step]


class Changed(_Reply):
    """Whether a change of an input, or a fault, changes a result."""

    changes: StrictBool


class Varied(_Reply):
    """Maximum share of each input tensor's elements that can be influential."""

    most: list[Annotated[_Number, Field(le=1.0)]]


def why_malformed(error: ValidationError) -> str:
    """Return the field that is malformed, and what was expected; none of the answer's own text."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = f"{first['loc'][0]}: " if first["loc"] else ""
    return field + first["msg"].removeprefix("Value error, ")
