"""Sampling of tokens: filters of the vocabulary, and a choice from given uniform numbers.

The choice must not depend on rounding: filters compare logits with a logit of the same row and keep ties, and each
token has its own uniform number, so that the two best scores differ by more than their rounding errors in all but one
of a million rows. The log probability of the chosen token is also returned: it shows each step's precision.
"""

from __future__ import annotations

from cudal1_data.generator.families.llm.block import Block, chosen, node
from cudal1_data.generator.families.llm.vocabulary import VOCABULARIES
from cudal1_data.generator.structure import Node


def sampling(block: Block) -> None:
    """Write a filter of the best tokens by number, by probability or both, and a draw of one of them."""
    draw = block.draw
    form = chosen(draw, ("top-k", "top-k and top-p", "min-p"), (1, 2, 1))
    dims = ("ROWS", "VOCAB")
    root = block.input("logits", *dims, text=f"{draw.one((2, 3))} * torch.randn(ROWS, VOCAB)")
    uniform = block.raw("uniform", dims, "uniform = torch.rand(ROWS, VOCAB)")
    text = block.wide("logits")
    if draw.chance(0.5):
        warmth = block.raw("temperature", ("ROWS", "1"), "temperature = 0.5 + torch.rand(ROWS, 1)")
        text, root = f"{text} / temperature", node("div", root, warmth)
    elif draw.chance(0.5):
        text, root = f"{text} / {draw.one((0.7, 0.8, 1.2))}", node("scale", root)
    if text != "logits":
        block.line(f"logits = {text}")
    least, mass, best = _by_share(block, root) if form == "min-p" else _by_rank(block, root, nucleus="p" in form[5:])
    block.line("kept = logits >= least")
    block.line('scores = torch.where(kept, logits - torch.log(-torch.log(uniform)), float("-inf"))')
    block.line("tokens = torch.argmax(scores, dim=-1)")
    noise = node("log", node("neg", node("log", uniform)))
    scores = node("where", node("sub", root, noise), node("compare", root, least))
    tokens = node("argmax", scores, detail="rows")
    block.line("chosen = logits.gather(1, tokens[:, None]).squeeze(1)")
    share = node("sub", node("sub", node("gather", root, tokens), best), node("log", mass))
    block.returns(
        ("tokens", ("ROWS",), tokens),
        ("chosen - best.squeeze(1) - torch.log(mass)", ("ROWS",), share),
    )
    vocab = block.size("VOCAB", draw.one((8000, 16000)), draw.one(VOCABULARIES))
    min_bytes = block.item_bytes + 4
    rows = draw.one((0.5e9, 0.8e9)) / min_bytes / vocab
    block.rows("ROWS", 1.6e5 / block.program.sizes["VOCAB"][0], rows, least=8)
    if form != "min-p":
        block.size("TOP_K", draw.one((20, 40, 50, 64)))


def _by_rank(block: Block, root: Node, *, nucleus: bool) -> tuple[Node, Node, Node]:
    """Write the smallest kept logit, and the sum of kept probabilities over the best; return both and the best."""
    block.line("ranked = torch.topk(logits, TOP_K, dim=-1).values")
    block.line("best = ranked[:, :1]")
    block.line("weights = torch.exp(ranked - best)")
    ranked = node("topk", root, detail="rows")
    best = node("part", ranked, detail="first")
    weights = node("exp", node("sub", ranked, best))
    if not nucleus:
        block.line("least, mass = ranked[:, -1:], weights.sum(dim=-1)")
        return node("part", ranked, detail="last"), node("sum", weights, detail="rows"), best
    share = block.draw.one((0.8, 0.9))
    block.line("before = torch.cumsum(weights, dim=-1) - weights")
    block.line(f"inside = before < {share} * weights.sum(dim=-1, keepdim=True)")
    block.line("least = torch.where(inside, ranked, best).amin(dim=-1, keepdim=True)")
    block.line("mass = torch.where(inside, weights, 0.0).sum(dim=-1)")
    before = node("sub", node("cumsum", weights, detail="rows"), weights)
    inside = node("compare", before, node("scale", node("sum", weights, detail="rows")))
    least = node("amin", node("where", ranked, inside, best), detail="rows")
    return least, node("sum", node("where", weights, inside), detail="rows"), best


def _by_share(block: Block, root: Node) -> tuple[Node, Node, Node]:
    """Write the same for tokens with at least a share of the best one's probability."""
    share = block.draw.one((0.05, 0.1))
    block.line("best = logits.amax(dim=-1, keepdim=True)")
    block.line(f"least = best + math.log({share})")
    block.line("mass = torch.where(logits >= least, torch.exp(logits - best), 0.0).sum(dim=-1)")
    best = node("amax", root, detail="rows")
    least = node("shift", best)
    weights = node("where", node("exp", node("sub", root, best)), node("compare", root, least))
    return least, node("sum", weights, detail="rows"), best
