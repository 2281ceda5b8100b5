"""Shapes of results of calls into PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.values import Layer, Value
from cudal1_data.kernelgen.ir import Dims, Node, Window, broadcast

_KEEPS_SHAPE = (
    *("LayerNorm", "RMSNorm", "GroupNorm"),
    *(f"{kind}{rank}d" for kind in ("BatchNorm", "InstanceNorm") for rank in (1, 2, 3)),
)
"""Layers whose result has the shape of their input."""
_CONVOLUTIONS = tuple(f"{kind}{rank}d" for kind in ("Conv", "ConvTranspose") for rank in (1, 2, 3))


def ints(value: Value) -> tuple[int, ...]:
    """Return one or several integers as a tuple.

    Raises:
        UnsuitableError: The value is no integer or tuple of integers.
    """
    values = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in values):
        raise UnsuitableError(f"{value!r} is not an integer known without running the program")
    return tuple(one for one in values if isinstance(one, int))


def axis(node: Node, value: Value) -> int:
    """Return an axis, counted from the front."""
    (place,) = ints(value)
    return place % len(node.dims)


def product(left: Dims, right: Dims) -> Dims:
    """Return the shape of a matrix product.

    >>> product((7, 2, 3), (3, 5))
    (7, 2, 5)
    """
    if len(right) == 1:
        return left[:-1]
    if len(left) == 1:
        return (*right[:-2], right[-1])
    return (*broadcast(left[:-2] or (1,), right[:-2] or (1,)), left[-2], right[-1])[-max(len(left), len(right)) :]


def swapped(dims: Dims, first: int, second: int) -> Dims:
    """Return the shape with two axes swapped."""
    order = list(dims)
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def reshaped(dims: Dims, sizes: Sequence[int]) -> Dims:
    """Return a new shape with one -1 resolved."""
    known = math.prod(size for size in sizes if size != -1)
    return tuple(math.prod(dims) // known if size == -1 else size for size in sizes)


def reduced(dims: Dims, axes: Sequence[int], *, keepdim: bool) -> Dims:
    """Return the shape after a reduction over axes, counted from the front."""
    if keepdim:
        return tuple(1 if place in axes else size for place, size in enumerate(dims))
    return tuple(size for place, size in enumerate(dims) if place not in axes)


def indexed(dims: Dims, index: tuple[Value, ...]) -> Dims:
    """Return the shape after `x[index]` with integers, slices, None, and adjacent tensors of integers.

    Raises:
        UnsuitableError: The index has other parts.
    """
    left = list(dims)
    result: list[int] = []
    tensors = [place for place, one in enumerate(index) if isinstance(one, Node)]
    adjacent = tensors == list(range(len(index)))[tensors[0] : tensors[-1] + 1] if tensors else True
    if not adjacent or (tensors and any(isinstance(one, int) for one in index)):
        raise UnsuitableError("an index has tensors that are not adjacent, or integers among them")
    chosen = [one for one in index if isinstance(one, Node)]
    for one in index:
        if one is None:
            result.append(1)
        elif isinstance(one, slice):
            result.append(len(range(*one.indices(left.pop(0)))))
        elif (isinstance(one, int) and not isinstance(one, bool)) or getattr(one, "dtype", "") == "index":
            left.pop(0)
        elif isinstance(one, Node) and one.dtype == "int64":
            left.pop(0)
            result.extend(broadcast(*(other.dims for other in chosen)) if one is chosen[0] else ())
        else:
            raise UnsuitableError("an index has parts other than integers, slices, None and integer tensors")
    return (*result, *left)


def windows(dims: Dims, given: Mapping[str, Value]) -> Dims:
    """Return the shape of a batch of maps after pooling.

    Args:
        dims: Samples, channels, and the maps' axes.
        given: `kernel_size`, and optionally `stride`, `padding` and `dilation`.
    """
    kernel, stride, padding, dilation = window_settings(len(dims) - 2, given)
    space = zip(dims[2:], kernel, stride, padding, dilation, strict=True)
    return (*dims[:2], *(_windowed(size, edge, step, pad, wide) for size, edge, step, pad, wide in space))


def window_settings(rank: int, given: Mapping[str, Value]) -> tuple[tuple[int, ...], ...]:
    """Return size, stride, padding and dilation of windows along each axis of maps."""
    edge = given.get("kernel_size")
    settings = (edge, edge if given.get("stride") is None else given["stride"], given.get("padding", 0))
    return tuple((ints(value) * rank)[:rank] for value in (*settings, given.get("dilation", 1)))


def _windowed(size: int, edge: int, step: int, pad: int, wide: int) -> int:
    """Return the number of windows along an axis, of `edge` elements, with dilation `wide` and stride `step`."""
    if step == edge and not pad and wide == 1:
        return size // step
    whole = size + 2 * pad - wide * (edge - 1)
    return whole if step == 1 else (whole - 1) // step + 1


def layer_dims(layer: Layer, dims: Dims) -> Dims:
    """Return the shape of a layer's result.

    Raises:
        UnsuitableError: The layer is not supported.
    """
    rank = len(dims) - 2
    if layer.kind.startswith("Conv") and not layer.kind.endswith(f"{rank}d"):
        raise UnsuitableError(f"{layer.name}(...) has an input of shape {dims}; templates read a batch of maps")
    if layer.kind in _KEEPS_SHAPE:
        return dims
    if layer.kind == "Linear":
        return (*dims[:-1], *ints(layer.argument(1, "out_features")))
    if layer.kind in _CONVOLUTIONS:
        window = convolution_window(layer)
        axes = zip(dims[2:], window.edges, window.stride, window.padding, window.dilation, strict=True)
        if window.transposed:
            more = _by_axis(layer, 5, "output_padding", 0)
            space = tuple(
                (size - 1) * step - 2 * pad + wide * (edge - 1) + 1 + extra
                for (size, edge, step, pad, wide), extra in zip(axes, more, strict=True)
            )
        else:
            space = tuple(_windowed(size, edge, step, pad, wide) for size, edge, step, pad, wide in axes)
        return (dims[0], *ints(layer.argument(1, "out_channels")), *space)
    raise UnsuitableError(f"the shape of the result of nn.{layer.kind} is unknown")


def convolution_window(layer: Layer) -> Window:
    """Return the window of a convolution.

    Raises:
        UnsuitableError: A setting is no integer or tuple of integers.
    """
    transposed = layer.kind.startswith("ConvTranspose")
    return Window(
        edges=_by_axis(layer, 2, "kernel_size", 1),
        stride=_by_axis(layer, 3, "stride", 1),
        padding=_by_axis(layer, 4, "padding", 0),
        dilation=_by_axis(layer, 8 if transposed else 5, "dilation", 1),
        groups=ints(layer.argument(6, "groups", 1))[0],
        transposed=transposed,
    )


def _by_axis(layer: Layer, place: int, name: str, default: int) -> tuple[int, ...]:
    """Return a setting of a convolution along each axis of its maps."""
    rank = int(layer.kind[-2])
    return (ints(layer.argument(place, name, default)) * rank)[:rank]


def attribute_dims(layer: Layer, name: str) -> Dims:
    """Return the shape of a layer's parameter or buffer.

    Raises:
        UnsuitableError: The parameter is not supported.
    """
    if layer.kind == "Linear":
        inner, outer = *ints(layer.argument(0, "in_features")), *ints(layer.argument(1, "out_features"))
        return {"weight": (outer, inner), "bias": (outer,)}[name]
    if layer.kind in _CONVOLUTIONS and name in ("weight", "bias"):
        (inner,), (outer,) = ints(layer.argument(0, "in_channels")), ints(layer.argument(1, "out_channels"))
        window = convolution_window(layer)
        sides = (inner, outer // window.groups) if window.transposed else (outer, inner // window.groups)
        return {"weight": (*sides, *window.edges), "bias": (outer,)}[name]
    if layer.kind == "Embedding" and name == "weight":
        return (*ints(layer.argument(0, "num_embeddings")), *ints(layer.argument(1, "embedding_dim")))
    if layer.kind == "GroupNorm" and name in ("weight", "bias"):
        return ints(layer.argument(1, "num_channels"))
    if layer.kind in ("LayerNorm", "RMSNorm") and name in ("weight", "bias"):
        return ints(layer.argument(0, "normalized_shape"))
    if layer.kind.startswith("BatchNorm") and name in ("weight", "bias", "running_mean", "running_var"):
        return ints(layer.argument(0, "num_features"))
    raise UnsuitableError(f"the shape of {layer.name}.{name} is unknown")
