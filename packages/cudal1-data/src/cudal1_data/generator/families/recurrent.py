"""Recurrences over time, written as a loop: gated cells, linear recurrences, two states."""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_data.generator import grid
from cudal1_data.generator.chain import chain, finished
from cudal1_data.generator.draw import Draw
from cudal1_data.generator.program import Program
from cudal1_data.generator.shapes import gpu_elements, near, target_ns
from cudal1_data.generator.sides import sides
from cudal1_data.generator.structure import Node
from cudal1_data.generator.values import Value

_ACTIVATIONS = {
    "tanh": "torch.tanh({0})",
    "softsign": "F.softsign({0})",
    "sin": "torch.sin({0})",
    "atan": "torch.atan({0})",
    "erf": "torch.erf({0})",
    "silu": "F.silu({0})",
    "gelu": "F.gelu({0})",
}
_GATES = {"sigmoid": "torch.sigmoid({0})", "bump": "torch.exp(-torch.square({0}))"}


@dataclass(frozen=True)
class _Cell:
    """One step, as lines and as a structure."""

    lines: tuple[str, ...]
    node: Node
    weights: tuple[Value, ...] = ()
    """Parameters besides its layers."""


def recurrent(program: Program, draw: Draw) -> None:
    """Write a loop over time, its states stacked, and a chain on them."""
    dims = ("BATCH", "STEPS", "WIDTH")
    x = program.input("x", dims, layout="transposed" if draw.chance(0.3) else "contiguous")
    state = program.input("state", ("BATCH", "WIDTH"))
    h = program.keep(chain(program, draw, x, draw.integer(0, 1), sides(program, draw, dims, 1, ("parameter",))))
    form = draw.one(("simple", "gated", "gated", "linear", "linear", "residual", "two"))
    cell = _CELLS[form](program, draw, h.node, Node("state", (state.node,)))
    program.line("states = []")
    program.line("for step in range(STEPS):")
    program.line(f"    now = {h.text}[:, step]")
    for line in cell.lines:
        program.line(f"    {line}")
    program.line("    states.append(state)")
    node = Node("recurrence", (cell.node,), form, heavy=True)
    sample = grid.mixed(draw, h.grid, state.grid, *(one.grid for one in cell.weights), spread=_SPREADS[form])
    # Without a layer the states are linear in the inputs.
    leaves = frozenset(() if form == "linear" else grid.leaves(sample))
    stacked = Value("torch.stack(states, dim=1)", node, dims, sample, leaves, nested=2)
    after = sides(program, draw, dims, draw.integer(0, 1), ("parameter", "full"))
    result = chain(program, draw, program.keep(stacked), draw.integer(0, 2), after)
    program.returns(finished(program, draw, result))
    _sizes(program, draw, layers=_LAYERS_OF[form], max_steps=32 if form == "simple" else 64)


def _sizes(program: Program, draw: Draw, *, layers: int, max_steps: int) -> None:
    """Set sizes; a cell without a path around its layer forgets its first state within a few steps."""
    batch = draw.one((16, 24, 32, 48, 64))
    width = draw.one((48, 64, 80, 96, 128)) if layers else near(draw, 500 + 1000 * draw.real())
    # About ten pointwise operators and the loop's overhead, besides the layers.
    step_ns = (100_000.0 if program.backward else 40_000.0) + batch * width * (
        12.0 + 2.0 * layers * width / program.flops_per_ns
    )
    steps = max(6, min(max_steps, round(target_ns(draw, program) / step_ns / 2) * 2))
    many, wide = draw.one((16, 24, 32)), draw.one((512, 768, 1024)) if layers else draw.one((4096, 5120, 6144))
    side = near(draw, gpu_elements(draw, program, ("BATCH", "STEPS", "WIDTH")) / (many * wide))
    program.size("BATCH", batch, side)
    program.size("STEPS", steps, many)
    program.size("WIDTH", width, wide)


def _layer(program: Program, name: str, node: Node, *, bias: bool = True) -> tuple[str, Node]:
    """Add a layer from states to states."""
    layer = program.member(name, "nn.Linear(WIDTH, WIDTH" + ("" if bias else ", bias=False") + ")")
    return layer, Node("linear", (node,), heavy=True)


def _act(draw: Draw, text: str, node: Node) -> tuple[str, Node]:
    name = draw.one(tuple(_ACTIVATIONS))
    return _ACTIVATIONS[name].format(text), Node(name, (node,))


def _gate(draw: Draw, text: str, node: Node) -> tuple[str, Node]:
    if draw.chance(0.75):
        return _GATES["sigmoid"].format(text), Node("sigmoid", (node,))
    return _GATES["bump"].format(text), Node("exp", (Node("neg", (Node("square", (node,)),)),))


def _simple(program: Program, draw: Draw, now: Node, state: Node) -> _Cell:
    layer, moved = _layer(program, "carry", state)
    scaled = program.parameter("pace", ("WIDTH",))
    text, node = _act(
        draw, f"now + {layer}(state) * {scaled.text}", Node("add", (now, Node("mul", (moved, scaled.node))))
    )
    return _Cell((f"state = {text}",), node, (scaled,))


def _gated(program: Program, draw: Draw, now: Node, state: Node) -> _Cell:
    """Write a gate between the old state and a new one; the reset may come before or after the layer."""
    gate_layer, gate_moved = _layer(program, "gate", state)
    new_layer, _ = _layer(program, "fresh", state, bias=False)
    gate_text, gate = _gate(draw, f"now + {gate_layer}(state)", Node("add", (now, gate_moved)))
    if draw.chance(0.5):
        inner, moved = f"now + {new_layer}(keep * state)", Node("linear", (Node("mul", (gate, state)),), heavy=True)
    else:
        inner, moved = f"now + keep * {new_layer}(state)", Node("mul", (gate, Node("linear", (state,), heavy=True)))
    new_text, new = _act(draw, inner, Node("add", (now, moved)))
    mixed = Node("add", (Node("mul", (gate, state)), Node("mul", (Node("shift", (gate,)), new))))
    lines = (f"keep = {gate_text}", f"new = {new_text}", "state = keep * state + (1 - keep) * new")
    return _Cell(lines, mixed)


def _linear(program: Program, draw: Draw, now: Node, state: Node) -> _Cell:
    """Write a cell without a matrix: each channel forgets at its own rate, which may depend on the input."""
    pace = program.parameter("pace", ("WIDTH",))
    if draw.chance(0.5):
        keep, gate = _gate(draw, f"{pace.text} + now", Node("add", (pace.node, now)))
    else:
        keep, gate = _gate(draw, pace.text, pace.node)
    new_text, new = _act(draw, "now", now) if draw.chance(0.7) else ("now", now)
    kept = Node("add", (Node("mul", (gate, state)), Node("mul", (Node("shift", (gate,)), new))))
    return _Cell((f"keep = {keep}", f"state = keep * state + (1 - keep) * {new_text}"), kept, (pace,))


def _residual(program: Program, draw: Draw, now: Node, state: Node) -> _Cell:
    """Write a small step from the old state, as in a solver of differential equations."""
    layer, moved = _layer(program, "flow", state)
    text, node = _act(draw, f"{layer}(state) + now", Node("add", (moved, now)))
    size = draw.one((0.25, 0.4, 0.5))
    step = Node("add", (Node("scale", (state,)), Node("scale", (node,))))
    return _Cell((f"state = {1 - size} * state + {size} * {text}",), step)


def _two(program: Program, draw: Draw, now: Node, state: Node) -> _Cell:
    """Write a cell with a hidden memory in addition to the state, as in LSTMs."""
    keep_layer, keep_moved = _layer(program, "gate", state)
    new_layer, new_moved = _layer(program, "fresh", state)
    program.line("memory = torch.zeros_like(state)")
    keep_text, keep = _gate(draw, f"now + {keep_layer}(state)", Node("add", (now, keep_moved)))
    new_text, new = _act(draw, f"now + {new_layer}(state)", Node("add", (now, new_moved)))
    memory = Node("add", (Node("mul", (keep, Node("memory", (state,)))), Node("mul", (Node("shift", (keep,)), new))))
    out_text, out = _act(draw, "memory", memory)
    gate_text, gate = _gate(draw, "now - memory", Node("sub", (now, memory)))
    lines = (
        f"keep = {keep_text}",
        f"memory = keep * memory + (1 - keep) * {new_text}",
        f"state = {gate_text} * {out_text}",
    )
    return _Cell(lines, Node("mul", (gate, out)))


_LAYERS_OF = {"simple": 1, "gated": 2, "linear": 0, "residual": 1, "two": 2}
"""Number of layers of each form."""

_SPREADS = {"simple": 0.5, "gated": 0.35, "linear": 0.35, "residual": 0.35, "two": 0.13}
"""Measured standard deviation of the states of each form."""

_CELLS = {"simple": _simple, "gated": _gated, "linear": _linear, "residual": _residual, "two": _two}
