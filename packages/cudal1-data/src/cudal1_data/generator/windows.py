"""Convolutions and pools with any window: edges, strides, padding and dilation along each axis, and groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cudal1_data.generator import grid
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.maps import CPU_FLOPS_PER_NS
from cudal1_data.generator.program import Program
from cudal1_data.generator.values import Dims, Value, combine

_EDGES = {1: (2, 3, 4, 5, 7, 9), 2: (2, 3, 3, 4, 5, 7), 3: (2, 3, 3)}
"""Lengths of a window's edges by number of axes."""
_POOL_EDGES = {1: (2, 3, 4, 6, 8), 2: (2, 3, 3, 4, 5, 9), 3: (2, 3, 3)}
"""The same for pools."""
_MAX_REACH = {1: 33, 2: 10, 3: 7}
"""Maximum length of maps that a dilated window covers: shorter than the shortest maps."""
_FEW = 4
"""Groups of channels that divide every number of channels."""
_GROWTH_FLOPS_PER_NS = 30.0
"""Floating-point operations per nanosecond of a transposed convolution on one core."""
_TAP_NS, _GROWTH_TAP_NS = 0.4, 2.0
"""Time of an element of a depthwise window, and of a transposed one, per element of the result."""


@dataclass(frozen=True)
class Window:
    """A kind of convolution or pool, with one number for each axis of its maps."""

    transposed: bool
    """Whether it is transposed."""
    groups: str
    """Number of groups of channels, as an expression of the program."""
    edges: tuple[int, ...]
    """Elements of a window."""
    stride: tuple[int, ...]
    """Step between windows."""
    padding: tuple[int, ...]
    """Zeros around the maps, or elements cut off around the result."""
    more: tuple[int, ...]
    """Output padding of a transposed convolution."""
    dilation: tuple[int, ...]
    """Distance of a window's elements."""

    @property
    def name(self) -> str:
        """Name of the operator in a structure."""
        rank = len(self.edges)
        kind = "conv_transpose" if self.transposed else "conv"
        if self.groups != "1":
            return f"{'grouped' if self.groups.isdigit() else 'depthwise'}_{kind}{rank}d"
        if max(self.edges) == 1:
            return f"pointwise_{kind}{rank}d"
        dilated = "dilated_" if max(self.dilation) > 1 else ""
        return f"{'strided_' if max(self.stride) > 1 else ''}{dilated}{kind}{rank}d"

    def settings(self, *, pool: bool = False) -> str:
        """Return edges, and what differs from torch's defaults, as arguments of a layer.

        Args:
            pool: Whether the layer is a pool, whose windows do not overlap by default.
        """
        ones = (1,) * len(self.edges)
        given = {
            "stride": (self.stride, self.edges if pool else ones),
            "padding": (self.padding, (0,) * len(self.edges)),
            "output_padding": (self.more, (0,) * len(self.edges)),
            "dilation": (self.dilation, ones),
        }
        unusual = {name: sizes for name, (sizes, usual) in given.items() if sizes != usual}
        return ", ".join([_written(self.edges), *(f"{name}={_written(sizes)}" for name, sizes in unusual.items())])

    def side(self, before: str, axis: int) -> str:
        """Return the length of the result along an axis, from that of the maps; the formulas are from torch's docs."""
        stride, reach = self.stride[axis], self.dilation[axis] * (self.edges[axis] - 1)
        if self.transposed:
            whole = f"{stride} * {before}" if stride > 1 else before
            return _plus(whole, reach + 1 + self.more[axis] - stride - 2 * self.padding[axis])
        whole = _plus(before, 2 * self.padding[axis] - reach - (stride > 1))
        return whole if stride == 1 else f"({whole}) // {stride} + 1"

    def dims(self, before: Dims, channels: str) -> Dims:
        """Return the shape of the result."""
        return (before[0], channels, *(self.side(side, axis) for axis, side in enumerate(before[2:])))


def drawn_pool(draw: Draw, rank: int, *, average: bool) -> Window:
    """Draw the window of a pool; averages have no dilation."""
    by_axis = _axes(draw, rank, alike=draw.chance(0.7))
    edges = by_axis(_POOL_EDGES[rank])
    stride = draw.one((edges, by_axis((1,)), by_axis((2, 2, 3))))
    wide = (1,) * rank if average or draw.chance(0.6) else by_axis((2, 3))
    padding = tuple(edge // 2 for edge in edges) if draw.chance(0.5) else (0,) * rank
    return Window(False, "CHANNELS", edges, stride, padding, (0,) * rank, _within_maps(wide, edges))


def drawn_window(draw: Draw, rank: int) -> Window:
    """Draw a window: plain, with groups, or of one element; in half of the cases its axes are all alike."""
    transposed = draw.chance(0.4)
    kind = draw.one(("plain", "plain", "plain", "depthwise", "grouped", "plain" if transposed else "pointwise"))
    by_axis = _axes(draw, rank, alike=draw.chance(0.5))
    edges = by_axis((1,) if kind == "pointwise" else _EDGES[rank])
    stride = by_axis((2, 2, 3)) if draw.chance(0.35) and kind != "pointwise" else (1,) * rank
    wide = by_axis((1, 2, 2, 3)) if draw.chance(0.3) else (1,) * rank
    dilation = _within_maps(wide, edges)
    padded, grown = draw.chance(0.5), draw.chance(0.5)
    padding = tuple(step * (edge // 2) if padded else 0 for step, edge in zip(dilation, edges, strict=True))
    more = tuple(step - 1 if transposed and grown else 0 for step in stride)
    groups = {"depthwise": "CHANNELS", "grouped": str(_FEW)}.get(kind, "1")
    return Window(transposed, groups, edges, stride, padding, more, dilation)


def _axes(draw: Draw, rank: int, *, alike: bool) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """Return a function that draws one of some numbers for each axis, or one for all."""
    return lambda items: (draw.one(items),) * rank if alike else tuple(draw.one(items) for _ in range(rank))


def _within_maps(dilation: tuple[int, ...], edges: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dilation along each axis, 1 where the window would be longer than the maps or has one element."""
    most = _MAX_REACH[len(edges)]
    return tuple(
        step if edge > 1 and step * (edge - 1) < most else 1 for step, edge in zip(dilation, edges, strict=True)
    )


def through(program: Program, draw: Draw, value: Value, window: Window, out: str, *, bias: bool) -> Value:
    """Convolve maps with a layer of the model.

    Args:
        program: The task.
        draw: Choices.
        value: The maps.
        window: The kind of convolution.
        out: Constant with the number of output channels.
        bias: Whether the layer has a bias.
    """
    rank, channels = len(window.edges), value.dims[1]
    words = [channels, out, window.settings()]
    words += [f"groups={window.groups}"] if window.groups != "1" else []
    words += [] if bias else ["bias=False"]
    kind = "ConvTranspose" if window.transposed else "Conv"
    layer = program.member("grow" if window.transposed else "conv", f"nn.{kind}{rank}d({', '.join(words)})")
    dims = window.dims(value.dims, out)
    # Fewer terms than the initialisation assumes: each output meets one window point in `stride`.
    spread = 0.62 / math.prod(window.stride) ** 0.5 if window.transposed else 0.62
    sample = grid.after_layer(draw, value.grid, spread)
    detail = f"{_written(window.edges)}/{_written(window.stride)}" + (", bias" if bias else "")
    return combine(window.name, f"{layer}({value.text})", dims, sample, value, detail=detail, layer=True)


def cost_ns(program: Program, window: Window, widening: float) -> float:
    """Return the time of a convolution over all channels, as `set_sizes` needs it; the program counts other time.

    Args:
        program: The task.
        window: The kind of convolution.
        widening: Channels of the result over those of the maps.
    """
    taps, steps = math.prod(window.edges), math.prod(window.stride)
    if window.groups == "CHANNELS":
        program.cost_ns += taps * (_GROWTH_TAP_NS if window.transposed else _TAP_NS)
        return 0.0
    terms = 2.0 * taps * widening / int(window.groups)
    return terms / _GROWTH_FLOPS_PER_NS if window.transposed else terms / steps / CPU_FLOPS_PER_NS


def _written(sizes: tuple[int, ...]) -> str:
    """Return a setting's text: one number if all axes have the same."""
    return str(sizes[0]) if len(set(sizes)) == 1 else str(sizes)


def _plus(text: str, number: int) -> str:
    """Return the text of a sum.

    >>> _plus("WIDTH", 2), _plus("WIDTH", -1), _plus("WIDTH", 0)
    ('WIDTH + 2', 'WIDTH - 1', 'WIDTH')
    """
    return f"{text} {'+' if number > 0 else '-'} {abs(number)}" if number else text
