"""Tensors as bytes: the expected form of outputs, and decoding of raw bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

Size = Annotated[int, Field(strict=True, ge=0, lt=1 << 62)]
"""A size, offset or position that a worker reports."""
Sizes = Annotated[tuple[Size, ...], Field(max_length=64)]
"""A shape, or strides; torch's tensors have at most 64 dimensions."""
Dtype = Annotated[str, Field(max_length=40)]
Array = Any
"""A numpy array on a CPU, or a torch tensor on a GPU."""

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance from 1 to the next number, by dtype."""

_NUMPY = {"bool": "bool", "bfloat16": "uint16"}


@dataclass(frozen=True)
class Expected:
    """Form of one output of a task."""

    shape: Sizes
    dtype: Dtype
    aliases: bool
    """Whether the reference itself returns an input's memory."""
    strides: Sizes | None = None
    """Strides of the reference's output, in elements; None means contiguous."""

    def __post_init__(self) -> None:
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise ValueError("expected a stride for each dimension")

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return item_bytes(self.dtype)

    @property
    def limit_bytes(self) -> int:
        """Bytes of an element's tolerance, or of an integer's alternative: 8 for float64 and integers, else 4."""
        return 4 if self.floating and self.dtype != "float64" else 8

    @property
    def floating(self) -> bool:
        """Whether elements are real floating-point numbers."""
        return self.dtype in EPSILON


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element of a dtype of the protocol."""
    return np.dtype(_NUMPY.get(dtype, dtype)).itemsize


def decode(data: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.generic]:
    """View raw bytes as numbers of a torch dtype; bfloat16 becomes float32.

    Booleans stay bytes, so that a byte other than 0 and 1 equals no answer.
    """
    if dtype == "bfloat16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "bool":
        return data
    return data.view(np.dtype(dtype))
