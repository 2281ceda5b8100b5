"""Gated MLPs: SwiGLU, GeGLU and similar, with or without their products."""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_data.generator.families.llm.block import Block, chosen, node
from cudal1_data.generator.structure import Node

_SHAPES = (
    (2048, 5632),
    (2048, 8192),
    (2560, 6912),
    (3072, 8192),
    (4096, 11008),
    (5120, 8192),
    (7168, 2048),
    (8192, 4096),
)
"""Outer and inner widths of published models and single experts; at most 140 million weights."""
_FLOPS = {"float32": 4.0e10, "bfloat16": 5.0e11, "float16": 5.0e11}
"""Approximate floating-point operations per millisecond on a GPU."""


@dataclass(frozen=True)
class _Activation:
    name: str
    text: str
    """Its text, with `{0}` for the operand."""


_ACTIVATIONS = (
    _Activation("silu", "F.silu({0})"),
    _Activation("silu", "F.silu({0})"),
    _Activation("gelu", "F.gelu({0})"),
    _Activation("gelu_tanh", 'F.gelu({0}, approximate="tanh")'),
    _Activation("silu_1.702", "{0} * torch.sigmoid(1.702 * {0})"),
    _Activation("relu", "F.relu({0})"),
)


def gated_mlp(block: Block) -> None:
    """Write the product of one layer's output and an activation of another's, mostly followed by a layer."""
    draw = block.draw
    if chosen(draw, ("layers", "activation"), (7, 1)) == "activation":
        _activation_only(block)
        return
    act = draw.one(_ACTIVATIONS)
    joint, biased, down, residual = draw.chance(0.4), draw.chance(0.2), draw.chance(0.75), draw.chance(0.25)
    dims = ("TOKENS", "HIDDEN")
    x = block.input("x", *dims)
    if joint:
        made = node("matmul", x, block.weight("up", "2 * INNER", "HIDDEN"))
        text = "F.linear(x, self.up)"
        if biased:
            made, text = node("add", made, _bias(block, "up_bias", "2 * INNER")), "F.linear(x, self.up, self.up_bias)"
        interleaved = draw.chance(0.3)
        if interleaved:
            block.line(f"h = {text}")
            block.line("gate, up = h[:, ::2], h[:, 1::2]")
        else:
            block.line(f"gate, up = {text}.chunk(2, dim=-1)")
        form = "strided" if interleaved else "halves"
        gate, up = node(form, made, detail="first"), node(form, made, detail="second")
    else:
        gate, up = (_layer(block, name, x, biased=biased) for name in ("gate", "up"))
    limited = draw.chance(0.15)
    if limited:  # as in models that clamp outliers
        block.line("gate, up = gate.clamp(max=1.5), up.clamp(-1.5, 1.5) + 1")
        gate, up = node("clamp", gate), node("shift", node("clamp", up))
    block.line(f"h = {act.text.format('gate')} * up")
    h, text, outer = node("mul", node(act.name, gate), up), "h", "INNER"
    if down:
        weight = block.weight("down", "HIDDEN", "INNER", text="2 * torch.randn(HIDDEN, INNER) / INNER**0.5")
        h, text, outer = node("matmul", h, weight), "F.linear(h, self.down)", "HIDDEN"
        if residual:
            h, text = node("add", x, h), f"x + {text}"
    block.returns((text, ("TOKENS", outer), h))
    hidden, inner = draw.one(_SHAPES)
    cpu_hidden, cpu_inner = (128, 256) if block.half else (hidden // 8, inner // 8)
    products = 2 + down
    block.size("HIDDEN", cpu_hidden, hidden)
    block.size("INNER", cpu_inner, inner)
    flops = _FLOPS[block.program.dtype] * draw.one((1.0, 1.5, 2.5)) * (1.5 if block.half else 2.5)
    cpu = (2.4e7 if block.half else 2.4e8) / (2 * products * cpu_hidden * cpu_inner)
    block.rows("TOKENS", cpu, flops / (2 * products * hidden * inner), least=4)


def _layer(block: Block, name: str, x: Node, *, biased: bool) -> Node:
    found = node("matmul", x, block.weight(name, "INNER", "HIDDEN"))
    text = f"x, self.{name}"
    if biased:
        found, text = node("add", found, _bias(block, f"{name}_bias", "INNER")), f"{text}, self.{name}_bias"
    block.line(f"{name} = F.linear({text})")
    return found


def _bias(block: Block, name: str, dim: str) -> Node:
    return block.weight(name, dim, text=f"0.5 * torch.randn({dim})")


def _activation_only(block: Block) -> None:
    """Write only the activation between the products, a separate kernel in serving engines."""
    draw = block.draw
    act, joint = draw.one(_ACTIVATIONS), draw.chance(0.6)
    dims = ("TOKENS", "INNER")
    if joint:
        whole = block.input("x", "TOKENS", "2 * INNER")
        gate, up = (node("halves", whole, detail=name) for name in ("first", "second"))
        block.line("gate, up = x.chunk(2, dim=-1)")
    else:
        gate, up = block.input("gate", *dims), block.input("up", *dims)
    weighted = draw.chance(0.4)
    wide = block.half and draw.chance(0.5)
    if wide:
        block.line(f"gate, up, dtype = {block.wide('gate')}, {block.wide('up')}, gate.dtype")
    text = f"{act.text.format('gate')} * up"
    h = node("mul", node(act.name, gate), up)
    if weighted:  # an expert's share
        share = block.raw("share", ("TOKENS", "1"), "share = torch.rand(TOKENS, 1) + 0.1")
        h, text = node("mul", h, share), f"{text} * share"
    if wide:
        text = f"({text}).to(dtype)"
    elif weighted and block.half:
        text = f"({text}).to(up.dtype)"
    block.returns((text, dims, h))
    inner = draw.one((2048, 4096, 5632, 8192, 11008, 14336, 16384))
    block.size("INNER", min(inner, 4096), inner)
    block.rows("TOKENS", 1.6e6 / min(inner, 4096), block.moved_elements() / 3 / inner, least=8)
