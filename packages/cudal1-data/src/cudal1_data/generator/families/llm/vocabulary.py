"""Operators on logits: cross-entropy over a vocabulary, soft caps."""

from __future__ import annotations

from cudal1_data.generator.families.llm.block import Block, chosen, node
from cudal1_data.generator.structure import Node

VOCABULARIES = (32000, 32768, 49152, 50304, 65536, 100352, 128256)
_FLOPS = {"float32": 4.0e10, "bfloat16": 5.0e11, "float16": 5.0e11}
"""Approximate floating-point operations per millisecond on a GPU."""


def cross_entropy(block: Block) -> None:
    """Write the loss of each token; some are smoothed, have a z-loss, capped logits or ignored labels."""
    draw = block.draw
    layer, root, text = _logits(block)
    ignoring = draw.chance(0.4)
    made = "torch.randint(VOCAB, (TOKENS,))"
    if ignoring:
        made = f"torch.where(torch.rand(TOKENS) < 0.9, {made}, -100)"
    labels = block.raw("labels", ("TOKENS",), f"labels = {made}", kind="i")
    if text != "logits":
        block.line(f"logits = {text}")
    if draw.chance(0.25):
        cap = draw.one((8.0, 12.0))
        block.line(f"logits = {cap} * torch.tanh(logits / {cap})")
        root = node("scale", node("tanh", node("scale", root)))
    form = chosen(draw, ("plain", "smoothed", "z"), (1, 2, 2))
    place = "labels"
    if ignoring:
        block.line("valid = labels != -100")
        place = "labels.clamp(min=0)"
    total = node("logsumexp", root, detail="rows")
    if form == "plain" and draw.chance(0.5):
        block.line("logs = torch.log_softmax(logits, dim=-1)")
        block.line(f"loss = -logs.gather(1, {place}[:, None]).squeeze(1)")
        loss = node("neg", node("gather", node("log_softmax", root, detail="rows"), labels))
    else:
        block.line("total = torch.logsumexp(logits, dim=-1)")
        block.line(f"loss = total - logits.gather(1, {place}[:, None]).squeeze(1)")
        loss = node("sub", total, node("gather", root, labels))
    outputs: list[tuple[str, tuple[str, ...], Node]] = []
    if form == "smoothed":
        share = draw.one((0.1, 0.2))
        block.line(f"loss = {1 - share} * loss + {share} * (total - logits.mean(dim=-1))")
        loss = node("add", node("scale", loss), node("scale", node("sub", total, node("mean", root, detail="rows"))))
    if form == "z":
        block.line("extra = 1e-4 * total.square()")
        outputs.append(("extra", ("TOKENS",), node("scale", node("square", total))))
    weighted = draw.chance(0.3)
    if weighted:  # each token's advantage
        loss = node("mul", loss, block.raw("weights", ("TOKENS",), "weights = torch.randn(TOKENS)"))
        block.line("loss = weights * loss")
    if ignoring:
        block.line("loss = torch.where(valid, loss, 0.0)")
        loss = node("where", loss, labels)
    block.returns(("loss", ("TOKENS",), loss), *outputs)
    _loss_sizes(block, layer=layer)


def _logits(block: Block) -> tuple[bool, Node, str]:
    """Add logits as an input or from a layer; return whether it is a layer, the logits, and their text."""
    # Rounding errors of half-precision logits would hide all other steps.
    if not block.half and block.draw.chance(0.6):
        x = block.input("x", "TOKENS", "HIDDEN")
        head = block.weight("head", "VOCAB", "HIDDEN", text="3 * torch.randn(VOCAB, HIDDEN) / HIDDEN**0.5")
        return True, node("matmul", x, head), "F.linear(x, self.head)"
    made = "(1 + 2 * torch.rand(TOKENS, 1)) * torch.randn(TOKENS, VOCAB) + 4 * torch.rand(TOKENS, 1) - 2"
    return False, block.input("logits", "TOKENS", "VOCAB", text=made), block.wide("logits")


def _loss_sizes(block: Block, *, layer: bool) -> None:
    draw = block.draw
    if layer:
        hidden, vocab = draw.one(((2048, 32000), (2048, 50304), (4096, 32000)))
        block.size("HIDDEN", 256, hidden)
        block.size("VOCAB", 4096, vocab)
        block.rows("TOKENS", 48, draw.one((1.0, 2.0)) * 1.0e11 / (2 * hidden * vocab), least=8)
        return
    small = draw.one((16000, 32000))
    vocab = block.size("VOCAB", small, draw.one(VOCABULARIES))
    block.rows("TOKENS", 8.0e5 / small, block.moved_elements(half=0.5, single=0.6) / vocab, least=16)


def capped_logits(block: Block) -> None:
    """Write softly capped logits; some are scaled by each token's temperature."""
    draw = block.draw
    x = block.input("x", "TOKENS", "HIDDEN")
    head = block.weight("head", "VOCAB", "HIDDEN", text="6 * torch.randn(VOCAB, HIDDEN) / HIDDEN**0.5")
    block.line("logits = F.linear(x, self.head)")
    root = node("matmul", x, head)
    if draw.chance(0.4):
        warmth = block.input("temperature", "TOKENS", "1", text="0.5 + torch.rand(TOKENS, 1)")
        block.line("logits = logits / temperature")
        root = node("div", root, warmth)
    if draw.chance(0.3):
        bias = block.weight("bias", "VOCAB", text="torch.randn(VOCAB)")
        block.line("logits = logits + self.bias")
        root = node("add", root, bias)
    cap = draw.one((8.0, 10.0, 15.0, 30.0))
    wide = block.half and draw.chance(0.5)
    if wide:
        block.line(f"logits = {block.wide('logits')}")
    text = f"{cap} * torch.tanh(logits / {cap})"
    root = node("scale", node("tanh", node("scale", root)))
    block.returns((block.narrow(f"({text})", "x") if wide else text, ("TOKENS", "VOCAB"), root))
    hidden, vocab = draw.one(((2048, 32000), (2048, 50304), (3072, 32768), (4096, 32000)))
    block.size("HIDDEN", 128 if block.half else 512, hidden)
    block.size("VOCAB", 2048, vocab)
    cpu = (2e7 if block.half else 1e8) / (2 * block.program.sizes["HIDDEN"][0] * 2048)
    flops = _FLOPS[block.program.dtype] * draw.one((1.0, 1.5)) * (0.8 if block.half else 2.0)
    block.rows("TOKENS", cpu, flops / (2 * hidden * vocab), least=4)
