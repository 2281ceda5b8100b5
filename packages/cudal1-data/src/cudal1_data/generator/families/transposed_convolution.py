"""Transposed convolutions as in decoders: skips, gates, scales of channels, a second layer."""

from __future__ import annotations

from cudal1_data.generator.chain import chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.maps import FORMS, convolved, dense_ns, dims_of, feature_input, grown, set_sizes
from cudal1_data.generator.program import Program
from cudal1_data.generator.sides import sides

# kernel, stride, padding, output padding: each multiplies the edge by its stride.
_WINDOWS = ((2, 2, 0, 0), (4, 2, 1, 0), (3, 1, 1, 0), (5, 1, 2, 0), (3, 3, 0, 0), (6, 2, 2, 0))


def transposed_convolution(program: Program, draw: Draw) -> None:
    """Write an optional chain, a transposed convolution, and a chain with operands of the larger size."""
    rank = draw.one((1, 1, 2, 2, 2, 3))
    window = draw.one(_WINDOWS)
    x = feature_input(program, draw, "x", dims_of(rank))
    before = sides(program, draw, x.dims, 1, ("channel", "full")) if draw.chance(0.4) else []
    h = chain(program, draw, x, draw.integer(0, 1), before)
    form = draw.one(("plain", "grouped", "mixed first")) if rank < 3 else "plain"
    if form == "mixed first":
        h = program.keep(convolved(program, draw, program.keep(h), FORMS[4]))
        h = chain(program, draw, h, 1)
    h = program.keep(grown(program, draw, program.keep(h), window, groups=4 if form == "grouped" else 1))
    after = sides(program, draw, h.dims, draw.integer(1, 2), ("channel", "channel", "full"))
    program.returns(finished(program, draw, chain(program, draw, h, draw.integer(2, 3), after)))
    kernel, stride, *_ = window
    program.cost_ns *= stride**rank
    dense = 2.0 * kernel**rank / (4 if form == "grouped" else 1) / 30.0
    dense += dense_ns(FORMS[4], rank) if form == "mixed first" else 0.0
    set_sizes(program, draw, x.dims, dense, growth=float(stride**rank))
