"""Replies of an oracle to the judge, parsed into bounded values.

A task may be a stranger's text, and it runs in the process that sends these answers. The judge believes none of them:
`OracleClient.ask` parses each by the model that belongs to the request, or as a `Failure`. What depends on the contents
of the request, such as the number of sets, is checked where the request is made.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Self, cast

from cudal1_worker import protocol as wire
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from cudal1_env.errors import printable
from cudal1_env.judge.device.tensors import item_bytes
from cudal1_env.judge.oracle.state import Fingerprints, Row, Size

_ALIGNMENT = 4096
"""As in `cudal1_worker.layout`, which imports torch."""
_MAX_DIMENSIONS = 64
"""Maximum number of dimensions of torch's tensors."""
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
_Dtype = Annotated[str, Field(max_length=40)]
_Sizes = Annotated[list[Size], Field(max_length=_MAX_DIMENSIONS)]
_Number = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class _Reply(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Array(_Reply):
    """A tensor as an argument."""

    array: str
    of: _Dtype
    shape: _Sizes

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


class _Strided(_Reply):
    """The form of a tensor."""

    dtype: _Dtype
    shape: _Sizes
    strides: _Sizes

    @model_validator(mode="after")
    def _has_strides(self) -> Self:
        if len(self.strides) != len(self.shape):
            raise ValueError("expected a stride for each dimension")
        return self


class _Tensor(_Strided):
    """A dense tensor in a block of bytes (`cudal1_worker.layout.manifest`)."""

    offset: Size
    bytes: Size

    @model_validator(mode="after")
    def _is_dense(self) -> Self:
        if self.dtype not in wire.DTYPES:
            raise ValueError("expected a dtype of the protocol")
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


def _check_manifest(entries: Sequence[_TensorEntry | _ValueEntry], size_bytes: int) -> None:
    """Raise ValueError unless tensors lie one after another, each on a page of its own, and fill the block."""
    offset = 0
    for entry in entries:
        if isinstance(entry, _TensorEntry):
            if entry.tensor.offset != offset:
                raise ValueError("expected tensors one after another")
            offset += -(-entry.tensor.bytes // _ALIGNMENT) * _ALIGNMENT
    if size_bytes != max(offset, _ALIGNMENT):
        raise ValueError("expected the size of the tensors together")


def _check_sendable(*values: Any) -> None:
    """Raise ValueError unless the values fit into a message to an arm."""
    if len(json.dumps(values)) > _MESSAGE_BYTES:
        raise ValueError("expected values that fit into a message")


class _Output(_Strided):
    aliases: StrictBool


class Described(_Reply):
    """See `cudal1_worker.oracle.description.describe`, and `IoSpec` for what becomes of it."""

    arguments: _Encoded
    state: list[Row]
    fixed: list[str]
    inputs: list[_TensorEntry | _ValueEntry]
    bytes: Size
    work_bytes: Size
    outputs: list[_Output]
    random: StrictBool
    stateful: list[Text]
    repeat: StrictBool
    constant: list[Size]
    seeded: list[Text]
    changed: list[Text]
    known: StrictBool

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_manifest(self.inputs, self.bytes)
        _check_sendable(self.arguments, self.entries)
        if not {*self.constant} <= {*range(len(self.inputs))}:
            raise ValueError("expected positions of inputs")
        return self

    @property
    def entries(self) -> list[dict[str, Any]]:
        """Layout of the inputs, as workers get it."""
        return [entry.model_dump() for entry in self.inputs]


class Stored(_Reply):
    """Weights that the oracle writes on request; see `Weights`."""

    names: list[str]
    entries: list[_TensorEntry]
    bytes: Size

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_manifest(self.entries, self.bytes)
        if len(self.names) != len(self.entries) or len({*self.names}) != len(self.names):
            raise ValueError("expected a name for each tensor")
        _check_sendable(self.names, self.layout)
        return self

    @property
    def layout(self) -> list[dict[str, Any]]:
        """Layout of the weights, as workers get it."""
        return [entry.model_dump() for entry in self.entries]


class Report(_Reply):
    """What the oracle finds about one output of a set (`cudal1_worker.oracle.reference_error.REPORTED`)."""

    scale: _Number
    reference_error: _Number
    masks_differ: _Number


class Made(_Reply):
    """Input sets that the oracle has written: for each set, and each output in it, a report and `Answer.bulk`."""

    reports: list[list[Report]]
    bulks: list[list[_Number | None]]

    def fits(self, sets: int, outputs: int) -> bool:
        """Return whether it has so many sets and outputs."""
        return all(list(map(len, rows)) == [outputs] * sets for rows in (self.reports, self.bulks))


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
    shapes: list[_Sizes]
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
