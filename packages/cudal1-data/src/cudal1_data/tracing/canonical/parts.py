"""Parts of a tensor in the graph, by their place along a dimension, regardless of the call that takes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cudal1_data.tracing.canonical.build import Builder, Shape, Tensor, along


def part(builder: Builder, value: Tensor, dim: int, taken: range, full: Shape) -> Tensor:
    """Return a range along a dimension: from the start, to the end, or between.

    Args:
        builder: The graph's builder.
        value: The tensor.
        dim: The dimension.
        taken: The range.
        full: Shape of the result.
    """
    size, start, end, step = value.full[dim], taken.start, taken.stop, taken.step
    if start == 0 and end >= size and step == 1:
        return builder.reshape(value, full)
    place = "start" if start == 0 else "end" if end >= size else "middle"
    how = along(value.full, [dim])
    return builder.operator(
        "part", [value], full, how, place, "" if step == 1 else "steps", identity=(dim, start, end, step)
    )


def strided(builder: Builder, value: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor | None:
    """Return a strided view of a contiguous tensor: all of it reshaped, or a part.

    Args:
        builder: The graph's builder.
        value: The tensor.
        size: Shape of the result.
        stride: Its strides, in elements.
        offset: Its first element.

    Returns:
        The result; None if it is not a range along each dimension.
    """
    full, sizes, strides = tuple(size), list(size), list(stride)
    if math.prod(full) == math.prod(value.full) and strides == list(_contiguous(full)):
        return builder.reshape(value, full)
    ranges: list[range] = []
    for whole in _contiguous(value.full):
        start, offset = divmod(offset, max(1, whole))
        same = bool(strides) and strides[0] == whole
        ranges.append(range(start, start + (sizes[0] if same else 1)))
        del sizes[:same], strides[:same]
    if sizes or any(one.stop > size for one, size in zip(ranges, value.full, strict=True)):
        return None
    for dim, taken in enumerate(ranges):
        value = part(builder, value, dim, taken, (*value.full[:dim], len(taken), *value.full[dim + 1 :]))
    return builder.reshape(value, full)


def _contiguous(shape: Shape) -> Shape:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
