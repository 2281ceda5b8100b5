"""Tables and indirect access: embeddings, edges, bags, scattered sums, rotations of pairs, neighbours."""

from __future__ import annotations

from cudal1_data.generator import grid
from cudal1_data.generator.chain import chain, finished, joined
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.errors import UnsuitableError
from cudal1_data.generator.program import Program
from cudal1_data.generator.reductions import dots
from cudal1_data.generator.shapes import elements, gpu_elements, hidden, near, plane
from cudal1_data.generator.sides import sides
from cudal1_data.generator.structure import Node
from cudal1_data.generator.values import Dims, Value, combine


def gather(program: Program, draw: Draw) -> None:
    """Write one of the forms, and a chain."""
    draw.one((_embedding, _embedding, _bag, _edges, _edges, _scattered, _along, _rotated, _neighbours))(program, draw)


def _after(program: Program, draw: Draw, h: Value, kinds: tuple[str, ...] = ("full", "parameter", "row")) -> None:
    after = sides(program, draw, h.dims, draw.integer(0, 2), kinds)
    program.returns(finished(program, draw, chain(program, draw, program.keep(h), draw.integer(1, 3), after)))


def _looked_up(program: Program, draw: Draw, tokens: Value, name: str) -> Value:
    """Write an embedding lookup in a parameter."""
    table = program.parameter(name, ("VOCABULARY", "WIDTH"), kind="full")
    dims: Dims = (*tokens.dims, "WIDTH")
    program.cost_ns += 2.0
    sample = grid.mixed(draw, tokens.grid, table.grid)
    text = f"F.embedding({tokens.text}, {table.text})"
    return combine("embedding", text, dims, sample, tokens, table)


def _token_sizes(program: Program, draw: Draw) -> None:
    width, length = draw.one((32, 48, 64, 96, 128, 200)), draw.one((24, 40, 64, 100, 128))
    batch = max(2, round(elements(draw, program) / (width * length)))
    words = near(draw, 1000 + 7000 * draw.real())
    wide, long = draw.one((1024, 2048, 4096)), draw.one((512, 1000, 2048))
    many = gpu_elements(draw, program, ("BATCH", "LENGTH", "WIDTH")) / (wide * long)
    program.size("BATCH", batch, max(4, round(many)))
    program.size("LENGTH", length, long)
    program.size("VOCABULARY", words, draw.one((32000, 50257, 65536)))
    program.size("WIDTH", width, wide)


def _embedding(program: Program, draw: Draw) -> None:
    """Write embeddings of tokens and places, as in language models."""
    tokens = program.index("tokens", ("BATCH", "LENGTH"), "VOCABULARY")
    h = program.keep(_looked_up(program, draw, tokens, "words"))
    if draw.chance(0.6):
        places = program.parameter("places", ("LENGTH", "WIDTH"), kind="full")
        h = joined(program, draw, h, places)
    else:
        h = chain(program, draw, h, 1)
    if program.backward:
        h = joined(program, draw, h, program.input("x", ("BATCH", "LENGTH", "WIDTH")))
    _after(program, draw, h)
    _token_sizes(program, draw)


def _bag(program: Program, draw: Draw) -> None:
    """Write weighted sums of the table rows in each list."""
    tokens = program.index("tokens", ("BATCH", "LENGTH"), "VOCABULARY")
    weights = program.input("weights", ("BATCH", "LENGTH", "1"), kind="column")
    rows = program.keep(_looked_up(program, draw, tokens, "words"))
    h = program.keep(chain(program, draw, rows, draw.integer(0, 1)))
    program.cost_ns += 2.0
    node = Node("sum", (Node("mul", (h.node, weights.node)),), "bags", heavy=True)
    size = grid.size(h.grid.values)
    sample = grid.mixed(draw, h.grid, weights.grid, spread=size)
    text = f"torch.sum({h.text} * {weights.text}, dim=1) / LENGTH**0.5"
    bag = combine("sum", text, ("BATCH", "WIDTH"), sample, h, weights, bends=True, infix=True)
    with program.uncounted():
        _after(program, draw, Value(text, node, bag.dims, sample, bag.curved, infix=True, nested=2))
    _token_sizes(program, draw)


def _edges(program: Program, draw: Draw) -> None:
    """Write an operator on the two ends of each edge of a graph."""
    x = program.input("x", ("NODES", "WIDTH"))
    source = program.index("source", ("EDGES",), "NODES")
    target = program.index("target", ("EDGES",), "NODES")
    dims = ("EDGES", "WIDTH")
    program.cost_ns += 5.0
    first = _rows_of(program, draw, x, source, dims)
    other = program.input("y", ("NODES", "WIDTH")) if draw.chance(0.4) else x
    second = _rows_of(program, draw, other, target, dims)
    if draw.chance(0.35):
        left = chain(program, draw, first, draw.integer(0, 1), [program.parameter("slope", ("WIDTH",))])
        h = dots(program, draw, left, second, "WIDTH")
        with program.uncounted():
            after = [program.input("weights", ("EDGES",), kind="column")]
            program.returns(finished(program, draw, chain(program, draw, program.keep(h), draw.integer(1, 2), after)))
    else:
        _after(program, draw, joined(program, draw, first, second), ("column", "parameter"))
    width = draw.one((16, 24, 32, 48, 64, 100))
    edges = near(draw, elements(draw, program) / width)
    _edge_sizes(program, draw, edges, near(draw, edges / 3), width)


def _edge_sizes(program: Program, draw: Draw, edges: int, nodes: int, width: int) -> None:
    wide = draw.one((64, 128, 200, 256))
    many = near(draw, gpu_elements(draw, program, ("EDGES", "WIDTH")) / wide)
    program.size("NODES", nodes, max(8, many // draw.integer(2, 5)))
    program.size("EDGES", edges, many)
    program.size("WIDTH", width, wide)


def _rows_of(program: Program, draw: Draw, x: Value, index: Value, dims: Dims) -> Value:
    sample = grid.mixed(draw, x.grid, index.grid)
    return program.keep(combine("index_select", f"{x.text}[{index.text}]", dims, sample, x, index))


def _scattered(program: Program, draw: Draw) -> None:
    """Write sums of messages at their target nodes."""
    x = program.input("x", ("EDGES", "WIDTH"))
    target = program.index("target", ("EDGES",), "NODES")
    weight = sides(program, draw, x.dims, 1, ("column", "parameter"))
    gate = chain(program, draw, weight[0], draw.integer(0, 1))
    value = grid.apply(lambda one, other: one * other, x.grid, gate.grid)
    if value is None or not grid.informative(value):
        raise UnsuitableError("messages are not informative")
    h = program.keep(
        combine("mul", f"{x.text} * {gate.atom}", x.dims, value, x, gate, heavy=False, infix=True, bends=True)
    )
    program.cost_ns += 2.0
    dims = ("NODES", "WIDTH")
    sample = grid.mixed(draw, h.grid, target.grid, spread=1.4 * grid.size(h.grid.values))
    program.line(f"nodes = torch.zeros(NODES, WIDTH, dtype={h.text}.dtype, device={h.text}.device)")
    total = combine("index_add", f"nodes.index_add(0, {target.text}, {h.text})", dims, sample, target, h)
    _after(program, draw, total)
    width = draw.one((16, 24, 32, 48, 64, 100))
    edges = near(draw, elements(draw, program) / width)
    _edge_sizes(program, draw, edges, max(8, edges // draw.integer(2, 5)), width)


def _along(program: Program, draw: Draw) -> None:
    """Write a gather of columns in each row, with an index of the same shape."""
    dims = ("ROWS", "COLS")
    x = program.input("x", dims, layout=program.layout())
    order = program.index("order", dims, "COLS")
    h = chain(program, draw, x, draw.integer(0, 2), sides(program, draw, dims, 1, ("parameter", "full")))
    program.cost_ns += 8.0
    h = program.keep(h)
    chosen = combine(
        "gather",
        f"torch.gather({h.text}, 1, {order.text})",
        dims,
        grid.mixed(draw, h.grid, order.grid, spread=grid.size(h.grid.values)),
        h,
        order,
        bounds=h.bounds,
    )
    _after(program, draw, chosen)
    plane(program, draw, dims)


def _rotated(program: Program, draw: Draw) -> None:
    """Write rotations of pairs of neighbouring columns, as in rotary embeddings."""
    dims = ("ROWS", "2 * PAIRS")
    x = program.input("x", dims, layout=program.layout())
    angle = program.input("angle", ("ROWS", "PAIRS"), layout=program.layout())
    h = program.keep(chain(program, draw, x, draw.integer(0, 1), sides(program, draw, dims, 1, ("parameter",))))
    program.line(f"even, odd = {h.text}[:, ::2], {h.text}[:, 1::2]")
    program.line(f"cos, sin = torch.cos({angle.text}), torch.sin({angle.text})")
    program.cost_ns += 10.0
    even, odd = (Node("strided", (h.node,), which) for which in ("even", "odd"))
    cos, sin = Node("cos", (angle.node,)), Node("sin", (angle.node,))
    rotated = Node("sub", (Node("mul", (even, cos)), Node("mul", (odd, sin))))
    other = Node("add", (Node("mul", (even, sin)), Node("mul", (odd, cos))))
    node = Node("interleave", (rotated, other))
    text = "torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(1)"
    sample = grid.mixed(draw, h.grid, angle.grid, spread=grid.size(h.grid.values))
    rotated_pairs = Value(text, node, dims, sample, frozenset((*h.leaves, *angle.leaves)), nested=6)
    _after(program, draw, rotated_pairs)
    pairs = near(draw, 60 + 300 * draw.real())
    rows = near(draw, elements(draw, program) / (2 * pairs))
    wide = hidden(draw, 8192) // 2
    program.size("ROWS", rows, near(draw, gpu_elements(draw, program, dims) / (2 * wide)))
    program.size("PAIRS", pairs, wide)


def _neighbours(program: Program, draw: Draw) -> None:
    """Write each element combined with its cyclic neighbours."""
    dims = ("ROWS", "COLS")
    x = program.input("x", dims, layout=program.layout())
    h = program.keep(chain(program, draw, x, draw.integer(0, 1), sides(program, draw, dims, 1, ("parameter", "full"))))
    for shift in draw.some((1, 2, -1, -3), draw.integer(1, 2)):
        dim = draw.integer(0, 1)
        sample = grid.mixed(draw, h.grid, spread=grid.size(h.grid.values))
        program.cost_ns += 2.0
        rolled = combine("roll", f"torch.roll({h.text}, {shift}, dims={dim})", dims, sample, h, detail=f"dim {dim}",
                         bounds=h.bounds)  # fmt: skip
        h = program.keep(joined(program, draw, h, program.keep(rolled)))
    _after(program, draw, h)
    plane(program, draw, dims)
