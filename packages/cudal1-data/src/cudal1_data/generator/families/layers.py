"""A layer and what follows it in a model, one step a line: activations, numbers, biases, pooling, a norm, a mean.

Unlike in other families, a layer has as many output channels as it likes, convolutions need no padding, and no step
needs a further input. A suite has this family only if it is named: `generated:layers`.
"""

from __future__ import annotations

from collections.abc import Callable

from cudal1_data.generator.chain import apply_named, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.families.steps import (
    Step,
    averaged_maps,
    logsumexp,
    normed_maps,
    normed_row,
    over_channels,
    pooled_maps,
    reduced_row,
    softmax_over_features,
    step,
)
from cudal1_data.generator.maps import Form, convolved, dense_ns, dims_of, grown, set_sizes
from cudal1_data.generator.products import linear, sides_of
from cudal1_data.generator.program import Program
from cudal1_data.generator.values import Value

_MIN_POINTWISE = 3
"""Minimum number of steps for each element of a layer's result."""
_FORMS = (
    *(Form("conv", kernel, padded=False) for kernel in (3, 3, 3, 5, 7)),
    Form("conv", 3),
    Form("conv", 5),
    Form("conv", 3, stride=2),
    Form("pointwise_conv", 1),
    Form("grouped_conv", 3, groups=4, padded=False),
)
_CUBES = tuple(one for one in _FORMS if one.kernel <= 5 and one.groups == 1)
"""Convolutions for maps with three dimensions, which have short edges and few channels."""
_WINDOWS = ((3, 2, 1, 1), (4, 2, 1, 0), (2, 2, 0, 0), (3, 2, 1, 0), (3, 1, 1, 0), (3, 1, 0, 0), (5, 1, 0, 0))
"""Transposed convolutions: kernel, stride, padding, output padding."""


Behind = Callable[[Program, Draw, Value, tuple[Step, ...], tuple[str, ...]], Value]
"""Writes what follows a layer's result; given are the larger steps and the kinds of operands that suit it."""


def layers(program: Program, draw: Draw) -> None:
    """Write a layer and what follows it."""
    draw.one((after_linear, after_convolution, after_convolution, after_transposed))(program, draw, _steps)


def after_linear(program: Program, draw: Draw, behind: Behind) -> None:
    """Write a linear layer, what follows it, and the sizes."""
    x = program.input("x", ("ROWS", "INNER"))
    h = program.keep(linear(program, draw, x, "INNER", "OUTER", layer=True))
    h = behind(program, draw, h, (normed_row, normed_row, reduced_row, logsumexp), ("parameter",))
    program.returns(finished(program, draw, h))
    sides_of(program, draw, ("ROWS", "INNER", "OUTER"))
    suit_groups(program, "OUTER")


def suit_groups(program: Program, width: str) -> None:
    """Make a width a multiple of the number of groups, if the program has groups."""
    if "GROUPS" in program.sizes:
        cpu, cuda = program.sizes[width]
        program.size(width, cpu // 16 * 16, cuda // 16 * 16)


def after_convolution(program: Program, draw: Draw, behind: Behind) -> None:
    """Write a convolution, what follows it, and the sizes."""
    rank, forms = draw.one(((1, _FORMS), (2, _FORMS), (2, _FORMS), (3, _CUBES)))
    form = draw.one(forms)
    x = program.input("x", dims_of(rank))
    h = program.keep(convolved(program, draw, x, form, "OUT"))
    widening = draw.one((0.5, 1.0, 1.5, 2.0))
    _maps(program, draw, behind, h, x, dense_ns(form, rank, widening=widening), widening, 1.0)


def after_transposed(program: Program, draw: Draw, behind: Behind) -> None:
    """Write a transposed convolution, what follows it, and the sizes."""
    rank, window = draw.one((1, 2, 2, 3, 3)), draw.one(_WINDOWS)
    x = program.input("x", dims_of(rank))
    h = program.keep(grown(program, draw, x, window, out="OUT", bias=True))
    widening, growth = draw.one((0.5, 1.0, 2.0)), float(window[1] ** rank)
    _maps(program, draw, behind, h, x, 2.0 * window[0] ** rank * widening / 30.0, widening, growth)


def _maps(
    program: Program, draw: Draw, behind: Behind, h: Value, x: Value, dense_ns: float, widening: float, growth: float
) -> None:
    """Write the steps behind a layer that has `widening` times as many channels and `growth` times as many elements."""
    larger = (pooled_maps, normed_maps, normed_maps, averaged_maps, over_channels, logsumexp)
    h = behind(program, draw, h, larger, ("channel",))
    program.returns(finished(program, draw, h))
    program.cost_ns *= widening * growth
    set_sizes(program, draw, x.dims, dense_ns, widths={"OUT": widening}, growth=max(1.0, widening * growth))


def _steps(program: Program, draw: Draw, h: Value, larger: tuple[Step, ...], kinds: tuple[str, ...]) -> Value:
    """Write three to five pointwise steps, some with a parameter of the model, and up to two of the larger steps.

    Shares of the features or channels come last, because they are small.
    """
    first, pointwise = h, draw.integer(_MIN_POINTWISE, 5)
    places = [draw.integer(0, pointwise) for _ in range(draw.one((0, 1, 1, 2)))]
    chosen = dict(zip(places, draw.some(larger, len(larger)), strict=False))
    for number in range(pointwise + 1):
        if number in chosen:
            if "1" in h.dims[1:]:
                raise UnsuitableError("only one element is left of a line")
            h = program.keep(chosen[number](program, draw, h))
        if number == 1 and h.dims == first.dims and draw.chance(0.15):
            h = program.keep(apply_named(program, draw, draw.one(("add", "mul")), h, first))
        elif number < pointwise:
            h = program.keep(step(program, draw, h, kinds))
    return softmax_over_features(program, draw, h) if "1" not in h.dims[1:] and draw.chance(0.1) else h
