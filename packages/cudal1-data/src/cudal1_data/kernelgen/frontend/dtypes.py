"""PyTorch's type promotion for tensors and numbers."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.values import Symbol, Value
from cudal1_data.kernelgen.ir import HALVES, Node

_FLOATS = ("float32", "float16", "bfloat16")
_KNOWN = (*_FLOATS, "bool", "int64")
_MAX_OF_HALF = 65520.0
"""Numbers from here on are infinite in float16."""
_ALIASES = {"float": "float32", "half": "float16", "long": "int64"}


def named(name: str) -> str:
    """Return the canonical name of a dtype: `torch.half` is `torch.float16`."""
    return _ALIASES.get(name, name)


def asked(value: Value) -> str:
    """Return the dtype that a program requests.

    Raises:
        UnsuitableError: The dtype is not supported.
    """
    if not isinstance(value, Symbol) or value.dtype not in _KNOWN:
        asked = value.text if isinstance(value, Symbol) else repr(value)
        raise UnsuitableError(f"the dtype {asked} is not supported; use one of {', '.join(_KNOWN)}")
    return value.dtype


def of_layer(value: Value) -> str:
    """Return the dtype of a layer's parameters from its argument `dtype`; empty if it is not supported."""
    if value is None:
        return "float32"
    return value.dtype if isinstance(value, Symbol) and value.dtype in _FLOATS else ""


def promoted(*operands: Value) -> str:
    """Return the dtype of a sum, a product or a choice of tensors and numbers.

    Raises:
        UnsuitableError: The dtype is unknown.
    """
    tensors = [one for one in operands if isinstance(one, Node)]
    numbers = [one for one in operands if not isinstance(one, Node)]
    kinds = {one.dtype for one in tensors}
    if not all(isinstance(one, int | float) for one in numbers) or not kinds <= set(_KNOWN):
        raise UnsuitableError("an operand has an unknown dtype; templates read numbers and tensors of known dtypes")
    if len(kinds) > 1 and len({one.dims == () for one in tensors}) > 1:
        raise UnsuitableError(
            "a tensor without axes is combined with one of another dtype; templates read one dtype there"
        )
    floats = kinds.intersection(_FLOATS)
    if floats:
        return floats.pop() if len(floats) == 1 else "float32"
    if any(isinstance(one, float) for one in numbers):
        return "float32"
    whole = "int64" in kinds or any(not isinstance(one, bool) for one in numbers)
    return "int64" if whole else "bool"


def divided(*operands: Value) -> str:
    """Return the dtype of a quotient.

    Raises:
        UnsuitableError: The dtype is unknown.
    """
    kind = promoted(*operands)
    return kind if kind in _FLOATS else "float32"


def rounded(value: Value, kind: str) -> Value:
    """Return a number rounded to half precision if a dtype is such, else the value itself.

    >>> rounded(0.1, "float16"), rounded(0.1, "bfloat16"), rounded(0.1, "float32"), rounded(3, "float16")
    (0.0999755859375, 0.10009765625, 0.1, 3)
    """
    if not isinstance(value, float) or not math.isfinite(value) or kind not in HALVES:
        return value
    if kind == "float16":
        return struct.unpack("e", struct.pack("e", value))[0] if abs(value) < _MAX_OF_HALF else value
    (bits,) = struct.unpack("I", struct.pack("f", value))
    even = (bits >> 16) & 1  # of two equally near numbers, the one whose last bit is 0
    return struct.unpack("f", struct.pack("I", (bits + 0x7FFF + even) >> 16 << 16))[0]


def common(tensors: Iterable[Node]) -> str:
    """Return the common dtype of tensors, float32 for none.

    Raises:
        UnsuitableError: Their dtypes differ.
    """
    kinds = {one.dtype for one in tensors} or {"float32"}
    if len(kinds) > 1:
        raise UnsuitableError(f"tensors of dtypes {sorted(kinds)} are combined; templates read one dtype there")
    return kinds.pop()
