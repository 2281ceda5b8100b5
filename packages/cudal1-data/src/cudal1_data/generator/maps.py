"""Feature maps: shapes in one to three dimensions, convolutions, and their cost."""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_data.generator import grid
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.program import Program
from cudal1_data.generator.shapes import gpu_elements, gpu_flops, target_ns
from cudal1_data.generator.values import Dims, Value, combine

_AXES = {1: ("LENGTH",), 2: ("HEIGHT", "WIDTH"), 3: ("DEPTH", "HEIGHT", "WIDTH")}
_EDGES = {1: (256, 300, 512, 700, 1024), 2: (24, 28, 32, 40, 48), 3: (8, 10, 12, 14)}
_GPU_EDGES = {1: (1024, 4096, 6000, 8192), 2: (56, 64, 112, 128), 3: (16, 24, 32)}
CPU_FLOPS_PER_NS = 45.0
"""Floating-point operations per nanosecond of a float32 convolution on one core."""
_LAYERS = ("conv", "conv2", "conv3", "conv4", "conv5")


@dataclass(frozen=True)
class Form:
    """A kind of convolution."""

    name: str
    """Its name in a structure."""
    kernel: int
    """Width of its window."""
    stride: int = 1
    """Step of its window."""
    dilation: int = 1
    """Distance of the window's points."""
    depthwise: bool = False
    """Whether each channel has its own window."""
    groups: int = 1
    """Groups of channels."""
    padded: bool = True
    """Whether maps are padded, so that they keep their size, or the stride divides it."""


FORMS = (
    Form("conv", 3),
    Form("conv", 3, stride=2),
    Form("conv", 3, dilation=2),
    Form("conv", 5),
    Form("pointwise_conv", 1),
    Form("depthwise_conv", 3, depthwise=True),
    Form("depthwise_conv", 5, depthwise=True),
    Form("grouped_conv", 3, groups=4),
)
"""Convolutions that keep the size of a map, or halve it."""


def dims_of(rank: int, channels: str = "CHANNELS") -> Dims:
    """Return the shape of feature maps with `rank` spatial dimensions."""
    return ("BATCH", channels, *_AXES[rank])


def feature_input(program: Program, draw: Draw, name: str, dims: Dims, *, kind: grid.Kind = "full") -> Value:
    """Add feature maps as an input; some are in channels-last layout."""
    last = len(dims) == 4 and draw.chance(0.3)
    return program.input(name, dims, kind=kind, layout="channels_last" if last else "contiguous")


def convolved(program: Program, draw: Draw, value: Value, form: Form, out: str = "") -> Value:
    """Convolve with a layer of the model.

    Args:
        program: The task.
        draw: Choices.
        value: Feature maps.
        form: The kind of convolution.
        out: Constant with the number of output channels; empty for that of the input.

    Raises:
        UnsuitableError: Sums over the values are not informative.
    """
    if not grid.mixes(value.grid, grid.leaf("", draw, "full")):
        raise UnsuitableError("sums of these values are not informative")
    rank, channels = len(value.dims) - 2, value.dims[1]
    out = out or channels
    words = [channels, out, str(form.kernel)]
    reach = form.dilation * (form.kernel // 2)
    padding = reach if form.padded else 0
    if form.stride > 1:
        words.append(f"stride={form.stride}")
    if padding:
        words.append(f"padding={padding}")
    if form.dilation > 1:
        words.append(f"dilation={form.dilation}")
    if form.depthwise or form.groups > 1:
        words.append(f"groups={channels if form.depthwise else form.groups}")
    bias = draw.chance(0.5)
    if not bias:
        words.append("bias=False")
    layer = program.member(program.free(_LAYERS), f"nn.Conv{rank}d({', '.join(words)})")
    space = value.dims[2:]
    if form.stride > 1:
        space = tuple(f"{dim} // {form.stride}" for dim in space)
    elif not form.padded:
        space = tuple(f"{dim} - {2 * reach}" for dim in space)
    sample = grid.after_layer(draw, value.grid, 0.62)
    detail = f"{rank}d, {form.kernel}" + ("" if form.padded else ", unpadded") + (", bias" if bias else "")
    dims = (value.dims[0], out, *space)
    return combine(form.name, f"{layer}({value.text})", dims, sample, value, detail=detail, layer=True)


def grown(
    program: Program,
    draw: Draw,
    value: Value,
    window: tuple[int, int, int, int],
    *,
    out: str = "",
    groups: int = 1,
    bias: bool | None = None,
) -> Value:
    """Convolve transposed with a layer of the model.

    Args:
        program: The task.
        draw: Choices.
        value: Feature maps.
        window: Kernel, stride, padding, output padding.
        out: Constant with the number of output channels; empty for that of the input.
        groups: Groups of channels.
        bias: Whether to add a bias; drawn by default.
    """
    kernel, stride, padding, more = window
    rank, channels = len(value.dims) - 2, value.dims[1]
    words = [channels, out or channels, str(kernel)]
    words += [f"stride={stride}"] if stride > 1 else []
    words += [f"padding={padding}"] if padding else []
    words += [f"output_padding={more}"] if more else []
    words += [f"groups={groups}"] if groups > 1 else []
    bias = draw.chance(0.5) if bias is None else bias
    words += [] if bias else ["bias=False"]
    layer = program.member("grow", f"nn.ConvTranspose{rank}d({', '.join(words)})")
    beyond = (
        kernel - stride - 2 * padding + more
    )  # (edge - 1) * stride - 2 * padding + kernel + more, from torch's docs
    space = tuple(f"{stride} * {dim}" if stride > 1 else dim for dim in value.dims[2:])
    if beyond:
        space = tuple(f"{dim} {'+' if beyond > 0 else '-'} {abs(beyond)}" for dim in space)
    # Fewer terms than the initialisation assumes: each output meets one window point in `stride`.
    sample = grid.after_layer(draw, value.grid, 0.62 / stride ** (rank / 2))
    detail = f"{rank}d, {kernel}/{stride}" + (f"{beyond:+d}" if beyond else "")
    detail += (", bias" if bias else "") + (", grouped" if groups > 1 else "")
    dims = (value.dims[0], out or channels, *space)
    return combine("conv_transpose", f"{layer}({value.text})", dims, sample, value, detail=detail, layer=True)


def set_sizes(
    program: Program,
    draw: Draw,
    dims: Dims,
    costs_ns: float,
    *,
    widths: dict[str, float] | None = None,
    growth: float = 1.0,
) -> None:
    """Set batch, channels and edges of the maps.

    Args:
        program: The task.
        draw: Choices.
        dims: The input's shape.
        costs_ns: Time of convolutions and pooling over all channels, per element and channel, in nanoseconds; the
            program has counted pointwise work.
        widths: Further constants for channels, as multiples of the input's.
        growth: Elements of the largest tensor over those of the input.
    """
    rank = len(dims) - 2
    channels = draw.one((8, 12, 16) if rank == 3 else (16, 24, 32, 48))
    edge = draw.one(_EDGES[rank])
    slower = 1.0 if program.dtype == "float32" else 20.0
    cost = program.cost_ns + costs_ns * slower * channels
    maps = target_ns(draw, program) / max(cost, 1.5) / (channels * edge**rank)
    while maps < 1.5 and edge > 10:
        edge = max(10, edge * 3 // 4) // 2 * 2
        maps = target_ns(draw, program) / max(cost, 1.5) / (channels * edge**rank)
    batch = max(1, min(64, round(maps)))
    wide = draw.one((32, 64) if rank == 3 else (64, 128, 192, 256))
    long = draw.one(_GPU_EDGES[rank])
    whole = gpu_elements(draw, program, dims) / growth
    if costs_ns:  # arithmetic may take longer than memory traffic
        whole = min(whole, gpu_flops(draw, program) / (CPU_FLOPS_PER_NS * costs_ns * wide))
    program.size("BATCH", batch, max(4, round(whole / (wide * long**rank))))
    program.size(dims[1], channels, wide)
    for name, width in (widths or {}).items():
        program.size(name, int(channels * width), int(wide * width))
    for name in dims[2:]:
        program.size(name, edge, long)


def dense_ns(form: Form, rank: int, *, widening: float = 1.0) -> float:
    """Return the time of a convolution over all channels per input element and channel, in nanoseconds."""
    if form.depthwise:
        return 0.0
    return 2.0 * form.kernel**rank * widening / form.groups / form.stride**rank / CPU_FLOPS_PER_NS
