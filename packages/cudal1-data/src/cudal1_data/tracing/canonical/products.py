"""Matrix products in canonical form: batches joined, and a transposed product as one of transposed factors."""

from __future__ import annotations

from cudal1_data.tracing.canonical.build import Builder, Number, Shape, Tensor, Value


def multiply(builder: Builder, name: str, first: Value, second: Value, shape: Shape) -> Value | None:
    """Return a matrix product; it stays `bmm` only if the batch does not share the right factor.

    Args:
        builder: The graph's builder.
        name: `mm`, `bmm`, `mv` or `dot`.
        first: The left factor.
        second: The right factor.
        shape: Shape of the result.

    Returns:
        The product; None if a factor is a number other than 0.
    """
    if Number(0.0) in (first, second):
        return Number(0.0)
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return None
    if name == "bmm" and second.shape[0] != 1:
        return _batched(builder, first, second, shape)
    if name == "bmm":
        second = Tensor(second.node, second.shape[1:], second.full[1:])
    first = builder.whole(first)
    source = builder.reshaped.get(first.node)
    if name in ("mm", "bmm") and source is not None and source.shape[-1] == first.shape[-1]:
        inner = builder.operator("mm", [source, second], (*source.shape[:-1], shape[-1]))
        return builder.reshape(inner, shape)
    return builder.operator("mm", [first, second], shape)


def transposed(builder: Builder, name: str, first: Value, second: Value, full: Shape) -> Value | None:
    """Return the transpose of a product, as the product of its transposed factors in swapped order.

    Args:
        builder: The graph's builder.
        name: `mm` or `bmm`.
        first: The left factor.
        second: The right factor.
        full: Shape of the result; its dimensions before the last two may be a split batch.

    Returns:
        The product; None if a factor is no tensor, or a batch shares one.
    """
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return None
    if name == "bmm" and 1 in (first.shape[0], second.shape[0]) and first.full[0] != 1:
        return None
    first, second = _whole_batches(builder, first, second) if name == "bmm" else (first, second)
    rank = len(first.full)
    order = [*range(rank - 2), rank - 1, rank - 2]
    left, right = builder.permute(second, order), builder.permute(first, order)
    shape = (*left.full[:-1], right.full[-1])
    made = _batched(builder, left, right, shape) if name == "bmm" else multiply(builder, name, left, right, shape)
    return builder.reshape(made, full) if isinstance(made, Tensor) else made


def _batched(builder: Builder, first: Tensor, second: Tensor, shape: Shape) -> Value:
    first, second = _whole_batches(builder, first, second)
    made = builder.operator("bmm", [first, second], (*first.shape[:-1], second.shape[-1]))
    return builder.reshape(made, shape)


def _whole_batches(builder: Builder, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors before their batch dimensions were joined, if both had the same ones."""
    first, second = builder.whole(first), builder.whole(second)
    left, right = (builder.reshaped.get(one.node) for one in (first, second))
    if left is None or right is None or left.shape[:-2] != right.shape[:-2]:
        return first, second
    keeps = left.shape[-2:] == first.shape[-2:] and right.shape[-2:] == second.shape[-2:]
    return (left, right) if keeps else (first, second)
