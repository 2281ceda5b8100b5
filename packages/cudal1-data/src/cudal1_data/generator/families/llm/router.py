"""Routers of a mixture of experts: the weights of the best experts, alone or with the experts' outputs.

A token's logits differ by at least 0.1, in random order, so that rounding cannot reorder them.
"""

from __future__ import annotations

from cudal1_data.generator.families.llm.block import Block, node
from cudal1_data.generator.structure import Node

_EXPERTS = ((8, 2), (16, 2), (64, 6), (64, 8), (128, 8), (256, 8))
"""Number of experts, and of experts per token."""


def router(block: Block) -> None:
    """Write the weights of each token's best experts; some tasks also sum the experts' weighted outputs."""
    draw = block.draw
    combined, sigmoid, grouped = draw.chance(0.5), draw.chance(0.35), draw.chance(0.3)
    made = (
        "order = torch.rand(TOKENS, EXPERTS).argsort(dim=-1)",
        "ranked = (0.1 + 0.6 * torch.rand(TOKENS, EXPERTS)).cumsum(dim=-1)",
        f"ranked = ranked - ranked[:, -1:] + {2 if sigmoid else 10} * torch.rand(TOKENS, 1)",
        "logits = ranked.gather(1, order)",
    )
    root = block.raw("logits", ("TOKENS", "EXPERTS"), *made)
    if grouped:
        root = _of_best_groups(block, root)
    late = not sigmoid and draw.chance(0.4)
    """Whether the softmax is only over the best logits."""
    if not late:
        block.line(f"scores = torch.{'sigmoid(logits' if sigmoid else 'softmax(logits, dim=-1'})")
        root = node("sigmoid", root) if sigmoid else node("softmax", root, detail="rows")
    name = "logits" if late else "scores"
    if combined:
        _combined(block, root, name, late=late)
    else:
        _dense(block, root, name, late=late)
    experts, count = draw.one([one for one in _EXPERTS if one[0] >= (8 if combined and not grouped else 64)])
    experts = block.size("EXPERTS", min(experts, 64), experts)
    block.size("TOP_K", min(count, 6), count)
    if grouped:
        block.size("GROUPS", 4, 8)
        block.size("TOP_GROUPS", 2, 4)
    if combined:
        hidden = block.size("HIDDEN", 256, draw.one((2048, 4096, 5120, 7168)))
        cpu = 2.0e6 / (256 * block.program.sizes["TOP_K"][0])
        block.rows("TOKENS", cpu, block.moved_elements(half=0.4, single=0.8) / (hidden * (count + 1)), least=8)
    else:
        block.rows("TOKENS", 1.2e5 / block.program.sizes["EXPERTS"][0], draw.one((0.25e9, 0.4e9)) / (4 * experts))


def _of_best_groups(block: Block, root: Node) -> Node:
    """Write a mask that keeps the experts of the best groups, ranked by their best expert."""
    block.line("grouped = logits.view(TOKENS, GROUPS, EXPERTS // GROUPS)")
    block.line("peaks = grouped.amax(dim=-1)")
    block.line("least = torch.topk(peaks, TOP_GROUPS, dim=-1).values[:, -1:]")
    block.line('logits = grouped.masked_fill((peaks < least)[..., None], float("-inf")).flatten(1)')
    peaks = node("amax", root, detail="groups")
    least = node("part", node("topk", peaks, detail="rows"), detail="last")
    return node("where", root, node("compare", peaks, least), detail="groups")


def _combined(block: Block, root: Node, name: str, *, late: bool) -> None:
    """Write the weighted sum of each token's expert outputs."""
    y = block.input("y", "TOKENS", "TOP_K", "HIDDEN")
    block.line(f"best = torch.topk({name}, TOP_K, dim=-1).values")
    best = node("topk", root, detail="rows")
    weights = _normalised(block, best, "best", late=late)
    if block.draw.chance(0.5):  # the expert of every token
        shared = block.input("shared", "TOKENS", "HIDDEN")
        text = f"{block.wide('shared')} + "
    else:
        shared, text = None, ""
    text = f"{text}(weights[..., None] * {block.wide('y')}).sum(dim=1)"
    total = node("sum", node("mul", weights, y), detail="experts")
    total = total if shared is None else node("add", shared, total)
    block.returns((block.narrow(f"({text})", "y") if block.half else text, ("TOKENS", "HIDDEN"), total))


def _dense(block: Block, root: Node, name: str, *, late: bool) -> None:
    """Write the weights of all experts, zero for unselected ones, scaled by a factor for each token."""
    block.line(f"least = torch.topk({name}, TOP_K, dim=-1).values[:, -1:]")
    least = node("part", node("topk", root, detail="rows"), detail="last")
    fill = 'float("-inf")' if late else "0.0"
    block.line(f"best = torch.where({name} >= least, {name}, {fill})")
    best = node("where", root, node("compare", root, least))
    weights = _normalised(block, best, "best", late=late)
    factor = block.input("factor", "TOKENS", "1", text="0.5 + torch.rand(TOKENS, 1)")
    text = f"weights * {block.wide('factor')}"
    weights = node("mul", weights, factor)
    block.returns((block.narrow(f"({text})", "factor") if block.half else text, ("TOKENS", "EXPERTS"), weights))


def _normalised(block: Block, best: Node, name: str, *, late: bool) -> Node:
    if late:
        block.line(f"weights = torch.softmax({name}, dim=-1)")
        return node("softmax", best, detail="rows")
    factor = block.draw.one(("", "", " * 2.5"))
    block.line(f"weights = {name} / {name}.sum(dim=-1, keepdim=True){factor}")
    found = node("div", best, node("sum", best, detail="rows"))
    return node("scale", found) if factor else found
