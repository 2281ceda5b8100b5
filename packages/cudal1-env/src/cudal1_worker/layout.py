"""Layout of tensors in shared memory: a manifest (JSON) that describes a block of bytes."""

from __future__ import annotations

import base64
from typing import Any

import torch

from cudal1_worker.protocol import ALIGNMENT, DTYPES

Entry = dict[str, Any]
"""`{"tensor": {dtype, shape, strides, offset, bytes}}` or `{"value": encoded}`."""

CODES = {getattr(torch, name): code for code, name in enumerate(DTYPES)}
"""Positions of dtypes in `DTYPES`."""
_DTYPES = {name: getattr(torch, name) for name in DTYPES}


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype.

    Raises:
        TypeError: Messages cannot describe tensors of this type.
    """
    if dtype not in CODES:
        raise TypeError(f"expected tensors of type {', '.join(DTYPES)}; got {dtype}")
    return DTYPES[CODES[dtype]]


def manifest(values: list[Any]) -> tuple[list[Entry], int]:
    """Lay out tensors one after another.

    Returns:
        An entry for each value, and the bytes of the whole block.
    """
    entries: list[Entry] = []
    offset = 0
    for value in values:
        if not isinstance(value, torch.Tensor):
            entries.append({"value": encode(value)})
            continue
        if torch.empty_like(value, device="meta").stride() != value.stride():  # torch keeps those of dense tensors only
            value = value.contiguous()
        size = value.numel() * value.element_size()
        entries.append(
            {
                "tensor": {
                    "dtype": name_of(value.dtype),
                    "shape": list(value.shape),
                    "strides": list(value.stride()),
                    "offset": offset,
                    "bytes": size,
                }
            }
        )
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return entries, max(offset, ALIGNMENT)


def view(block: torch.Tensor, entry: Entry) -> torch.Tensor:
    """Return the tensor that `entry` describes, as a view of `block` (bytes, on any device)."""
    spec = entry["tensor"]
    dtype = _DTYPES[spec["dtype"]]
    count = spec["bytes"] // dtype.itemsize
    if count == 0:
        return torch.empty(spec["shape"], dtype=dtype, device=block.device)
    flat = block[spec["offset"] : spec["offset"] + spec["bytes"]].view(dtype)
    return flat.as_strided(spec["shape"], spec["strides"])


def store(block: torch.Tensor, entries: list[Entry], values: list[Any]) -> None:
    """Copy tensors into a writable block at the places given by the manifest."""
    for entry, value in zip(entries, values, strict=True):
        if "tensor" in entry and entry["tensor"]["bytes"]:
            view(block, entry).copy_(value)


def encode(value: Any) -> Any:
    """Encode a constructor argument as JSON; list, tuple and dict stay distinct.

    Raises:
        TypeError: The value's type is not supported.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Size | tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, list):
        return {"list": [encode(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, torch.dtype):
        return {"dtype": name_of(value)}
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().flatten()
        raw = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
        shape = list(value.shape)
        return {"array": base64.b64encode(raw).decode(), "of": name_of(value.dtype), "shape": shape}
    raise TypeError(
        f"a value of get_inputs() or get_init_inputs() is of type {type(value).__name__}; use numbers, text, lists, "
        "tuples, dicts, dtypes and tensors"
    )


def decode(value: Any) -> Any:
    """Undo `encode`."""
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(decode(item) for item in value["tuple"])
    if "list" in value:
        return [decode(item) for item in value["list"]]
    if "dict" in value:
        return {decode(key): decode(item) for key, item in value["dict"]}
    if "dtype" in value:
        return _DTYPES[value["dtype"]]
    raw = bytearray(base64.b64decode(value["array"]))
    dtype = _DTYPES[value["of"]]
    return (
        torch.frombuffer(raw, dtype=dtype).reshape(value["shape"]) if raw else torch.empty(value["shape"], dtype=dtype)
    )


def flatten(value: Any) -> list[Any]:
    """Return the leaves of nested lists, tuples and dicts, in order; dict entries are sorted by the keys' text."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flatten(item)]
    if isinstance(value, dict):
        return [leaf for _, item in sorted(value.items(), key=lambda item: str(item[0])) for leaf in flatten(item)]
    return [value]
