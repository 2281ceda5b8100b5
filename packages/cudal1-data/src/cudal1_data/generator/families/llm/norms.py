"""Norms of transformers: with a residual, and modulated by a condition (AdaLN)."""

from __future__ import annotations

from cudal1_data.generator.families.llm.block import Block, node
from cudal1_data.generator.structure import Node

_HIDDEN = (2048, 3072, 4096, 5120, 6144, 8192, 12288, 16384)
_CPU_ELEMENTS = 8.0e5
"""Elements of a tensor at the CPU size."""


def root_mean_square(block: Block, x: str, root: Node, name: str) -> Node:
    """Write a tensor divided by its root mean square, under a name; the tensor is in the wide dtype."""
    block.line(f"{name} = {x} * torch.rsqrt({x}.square().mean(dim=-1, keepdim=True) + 1e-6)")
    return node("mul", root, node("rsqrt", node("shift", node("mean", node("square", root), detail="rows"))))


def _centred(block: Block, x: str, root: Node, name: str) -> Node:
    block.line(f"{name} = {x} - {x}.mean(dim=-1, keepdim=True)")
    centred = node("sub", root, node("mean", root, detail="rows"))
    return root_mean_square(block, name, centred, name)


class Norm:
    """A norm with weights, in one of the published forms."""

    def __init__(self, block: Block, dim: str) -> None:
        draw = block.draw
        self.block = block
        self.dim = dim
        self.form = draw.one(("rms", "rms", "rms", "layer"))
        self.offset = draw.chance(0.3)
        """Whether weights are stored as offsets from 1, as in Gemma."""
        self.rounded_first = block.half and draw.chance(0.4)
        """Whether the norm is rounded before its weights are applied, as in Llama."""
        self.bias = self.form == "layer" and draw.chance(0.6)

    def apply(self, x: str, root: Node, name: str, weight: str, like: str) -> Node:
        """Write a norm and its weights.

        Args:
            x: A tensor in the wide dtype.
            root: Its structure.
            name: Name of the result, which is in the task's dtype.
            weight: Name of the weights.
            like: A tensor in the task's dtype.
        """
        block = self.block
        found = (_centred if self.form == "layer" else root_mean_square)(block, x, root, name)
        made = "0.2 * torch.randn" if self.offset else "1 + 0.2 * torch.randn"
        scale = block.weight(weight, self.dim, text=f"{made}({self.dim})")
        text = f"self.{weight}" if self.rounded_first else block.wide(f"self.{weight}")
        if self.offset:
            text, scale = f"(1 + {text})", node("shift", scale)
        if self.rounded_first:
            block.line(f"{name} = {block.narrow(name, like)} * {text}")
        else:
            block.line(f"{name} = {name} * {text}")
        found = node("mul", found, scale)
        if self.bias:
            bias = block.weight(f"{weight}_bias", self.dim, text=f"0.5 * torch.randn({self.dim})")
            block.line(f"{name} = {name} + self.{weight}_bias")
            found = node("add", found, bias)
        if block.half and not self.rounded_first:
            block.line(f"{name} = {block.narrow(name, like)}")
        return found


def residual_norm(block: Block) -> None:
    """Write the sum of a layer's output and the residual, and its norm; return both."""
    draw, dims = block.draw, ("TOKENS", "HIDDEN")
    x, residual = block.input("x", *dims), block.input("residual", *dims)
    norm = Norm(block, "HIDDEN")
    wide_sum = draw.chance(0.5)
    factor = draw.one((1, 1, 0.25, 0.5))
    total, text, streams = x, "x", 4
    if draw.chance(0.25):  # parallel attention and MLP
        total, text, streams = node("add", total, block.input("y", *dims)), "(x + y)", 5
    if draw.chance(0.25):  # the layer's output has its own norm
        block.line(f"x = {block.wide(text)}")
        total, text = norm.apply("x", total, "inner", "inner_weight", "residual"), "inner"
    elif wide_sum and block.half:
        text = text.replace("x", block.wide("x")).replace("y", block.wide("y"))
    if factor != 1:
        total, text = node("scale", total), f"{factor} * {text}"
    block.line(f"residual = residual + {text}")
    total = node("add", residual, total)
    h = "residual"
    if block.half:
        block.line(f"h = {block.wide('residual')}")
        if wide_sum:
            block.line(f"residual = {block.narrow('h', 'self.weight')}")
        h = "h"
    out = norm.apply(h, total, "out", "weight", "self.weight")
    block.returns(("out", dims, out), ("residual", dims, total))
    hidden = block.size("HIDDEN", draw.one(_HIDDEN))
    block.rows("TOKENS", _CPU_ELEMENTS / hidden, block.moved_elements(half=0.6) / streams / hidden, least=8)


def modulated_norm(block: Block) -> None:
    """Write AdaLN: a norm without weights, then scale and shift from a condition; some add a gated residual first."""
    draw, dims, row = block.draw, ("BATCH", "TOKENS", "HIDDEN"), ("BATCH", "1", "HIDDEN")
    form, gated, from_layer = draw.one(("layer", "layer", "rms")), draw.chance(0.5), draw.chance(0.3)
    x = block.input("x", *dims)
    names = ["shift", "scale", "gate"] if gated else ["shift", "scale"]
    if from_layer:
        condition = block.input("condition", "BATCH", "HIDDEN")
        weight = block.weight("weight", f"{len(names)} * HIDDEN", "HIDDEN")
        layer = node("matmul", node("silu", condition), weight)
        block.line(f"parts = F.linear(F.silu(condition), self.weight)[:, None].chunk({len(names)}, dim=-1)")
        block.line(f"{', '.join(names)} = parts")
        parts = {name: node("part", layer, detail=name) for name in names}
    else:
        parts = {name: block.input(name, *row) for name in names}
    root, h, like = x, "x", "scale"
    if gated:
        y = block.input("y", *dims)
        block.line("x = x + gate * y")
        root = node("add", x, node("mul", parts["gate"], y))
    if block.half:
        block.line(f"h = {block.wide('x')}")
        h = "h"
    normed = (_centred if form == "layer" else root_mean_square)(block, h, root, "out")
    if draw.chance(0.5) or not block.half:
        block.line(f"out = out * (1 + {block.wide('scale')}) + {block.wide('shift')}")
        text = block.narrow("out", like)
    else:  # rounded after the norm, as in a half-precision layer
        block.line("out = out.to(x.dtype) * (1 + scale) + shift")
        text = "out"
    out = node("add", node("mul", normed, node("shift", parts["scale"])), parts["shift"])
    block.returns((text, dims, out), *([("x", dims, root)] if gated else []))
    hidden = draw.one((2048, 3072, 4096) if from_layer else _HIDDEN[:6])
    cpu_hidden = hidden // 8 if from_layer else hidden // 2
    block.size("HIDDEN", cpu_hidden, hidden)
    block.size("BATCH", 4, draw.one((4, 8, 16)))
    elements = block.moved_elements(half=0.5, single=0.8) / (4 if gated else 2)
    block.rows("TOKENS", _CPU_ELEMENTS / cpu_hidden / 4, elements / hidden / block.program.sizes["BATCH"][1], least=8)
