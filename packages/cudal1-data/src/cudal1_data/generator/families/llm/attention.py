"""Attention of language models: shared heads of keys and values, for a whole prompt and for one new token.

Scores have a standard deviation of 1, in bfloat16 of 1.5. Rounding errors of larger scores would hide the summation of
values. With smaller scores in bfloat16, rounding the weights alone can exceed the tolerance.
"""

from __future__ import annotations

from cudal1_data.generator.families.llm.block import Block, node
from cudal1_data.generator.structure import Node
from cudal1_data.generator.values import Dims

_PREFILL = ((1024, 128), (2048, 32), (2048, 48), (4096, 8), (4096, 12))
"""Number of tokens, and of heads in all sequences: 130 to 200 million scores."""
_GROUPS = ((8, 1), (8, 2), (16, 2), (16, 4), (32, 8), (16, 8), (32, 4))
"""Number of heads of queries, and of keys and values."""


def _queries(block: Block, *rows: str) -> str:
    spread = "1.5 * " if block.program.dtype == "bfloat16" else ""
    return f"{spread}torch.randn({', '.join(('BATCH', 'HEADS', *rows, 'HEAD_DIM'))})"


def _scores_changed(block: Block, root: Node) -> Node:
    """Cap scores in some tasks."""
    if block.draw.chance(0.3):
        cap = block.draw.one((3.0, 4.0, 5.0))
        block.line(f"scores = {cap} * torch.tanh(scores / {cap})")
        root = node("scale", node("tanh", node("scale", root)))
    return root


def _weights(block: Block, root: Node, rows: str, keys: str) -> Node:
    """Write the softmax; in some tasks with a score per head that takes weight without a value (a sink).

    A sink weighs about as much as a fifth of `keys` keys; otherwise a long row would hide it.
    """
    if block.draw.chance(0.25):
        sink = block.weight("sink", "HEADS", text=f"torch.tensor({keys}).log() - 1 + torch.randn(HEADS)")
        block.line(f"sink = {block.wide('self.sink')}.view(1, HEADS, 1, 1).expand(BATCH, HEADS, {rows}, 1)")
        block.line("scores = torch.cat((scores, sink), dim=-1)")
        block.line("weights = torch.softmax(scores, dim=-1)[..., :-1]")
        return node("rest", node("softmax", node("cat", root, sink), detail="rows"))
    block.line("weights = torch.softmax(scores, dim=-1)")
    return node("softmax", root, detail="rows")


def _gated(block: Block, text: str, dims: Dims, root: Node) -> tuple[str, Node]:
    """Multiply the result by a gate of its shape in some tasks."""
    if not block.draw.chance(0.25):
        return text, root
    gate = block.input("gate", *dims)
    block.line(f"out = {text}")
    return "out * torch.sigmoid(gate)", node("mul", root, node("sigmoid", gate))


def prefill_attention(block: Block) -> None:
    """Write causal attention of a prompt or its next part; some have a window, packed documents, a cap or sinks."""
    draw = block.draw
    # A prompt's first tokens see few others: errors of two or three rounded weights vary too much for bfloat16.
    later = block.program.dtype == "bfloat16" or draw.chance(0.3)
    window, packed, slopes = draw.chance(0.35), not later and draw.chance(0.35), draw.chance(0.2)
    layout = "transposed" if draw.chance(0.5) else "contiguous"
    length = "PREFIX + TOKENS" if later else "TOKENS"
    q = block.input("q", "BATCH", "HEADS", "TOKENS", "HEAD_DIM", text=_queries(block, "TOKENS"), layout=layout)
    k, v = (block.input(name, "BATCH", "KV_HEADS", length, "HEAD_DIM", layout=layout) for name in ("k", "v"))
    root = _scores_changed(block, _scores(block, q, k))
    block.line(f"place = torch.arange({length}, device=q.device)")
    block.line(f"back = {'place[PREFIX:]' if later else 'place'}[:, None] - place")
    if slopes:  # a slope for each head, times the distance (ALiBi)
        block.line("slope = 2.0 ** (-8 * torch.arange(1, HEADS + 1, device=q.device) / HEADS)")
        block.line("scores = scores - slope[:, None, None] * back")
        root = node("sub", root, node("distance"))
    block.line("seen = (back >= 0) & (back < WINDOW)" if window else "seen = back >= 0")
    masks: list[Node] = []
    if packed:
        made = "documents = torch.randint(DOCUMENTS, (BATCH, TOKENS)).sort(dim=-1).values"
        masks = [block.raw("documents", ("BATCH", "TOKENS"), made, kind="i")]
        block.line("seen = seen & (documents[:, None, :, None] == documents[:, None, None, :])")
    block.line('scores = scores.masked_fill(~seen, float("-inf"))')
    detail = " ".join(["later"] * later + ["window" if window else "causal"])
    root = node("where", root, *masks, detail=detail)
    # Slopes leave each query a few near keys, documents those of one document.
    keys = "4.0" if slopes else "WINDOW" if window else "TOKENS / DOCUMENTS" if packed else "TOKENS / 2"
    out = node("matmul", _weights(block, root, "TOKENS", keys), v, detail="values")
    dims = ("BATCH", "HEADS", "TOKENS", "HEAD_DIM")
    text, out = _gated(block, f"{block.narrow('weights', 'v')} @ values", dims, out)
    if draw.chance(0.5):
        text = f"({text}).transpose(1, 2).flatten(2)"
        dims = ("BATCH", "TOKENS", "HEADS * HEAD_DIM")
    block.returns((text, dims, out))
    _prefill_sizes(block, later=later, window=window, packed=packed)


def _prefill_sizes(block: Block, *, later: bool, window: bool, packed: bool) -> None:
    draw = block.draw
    heads, kv_heads = draw.one(_GROUPS)
    tokens, rows = draw.one(_PREFILL)
    heads = min(heads, rows)
    cpu_tokens = 64 if block.half else 256
    block.size("BATCH", 1, max(1, rows // heads))
    block.size("HEADS", 4, heads)
    block.size("KV_HEADS", 1 if kv_heads == 1 else 2, min(kv_heads, heads // 2))
    block.size("HEAD_DIM", draw.one((64, 128)))
    if later:
        tokens = tokens * 3 // 4
        block.size("PREFIX", cpu_tokens, tokens)
    block.size("TOKENS", cpu_tokens, tokens)
    if window:
        block.size("WINDOW", cpu_tokens * 3 // 4, tokens // draw.one((2, 4)))
    if packed:
        block.size("DOCUMENTS", 3, 8)


def _scores(block: Block, q: Node, k: Node, query: str = "q", key: str = "k", value: str = "v") -> Node:
    """Repeat keys and values for each head of queries, and write the scores in the wide dtype."""
    block.line(f"keys = {key}.repeat_interleave(HEADS // KV_HEADS, dim=1)")
    block.line(f"values = {value}.repeat_interleave(HEADS // KV_HEADS, dim=1)")
    block.line(f"scores = {block.wide(f'({query} @ keys.transpose(2, 3))')} / HEAD_DIM**0.5")
    return node("scale", node("matmul", q, node("repeat", k), detail="scores"))


def decode_attention(block: Block) -> None:
    """Write attention of each sequence's new token to a long, partly filled cache."""
    draw = block.draw
    paged, window = draw.chance(0.35), draw.chance(0.25)
    q = block.input("q", "BATCH", "HEADS", "HEAD_DIM", text=_queries(block))
    length = "PAGES * PAGE" if paged else "LENGTH"
    if paged:
        dims = ("BATCH * PAGES", "PAGE", "KV_HEADS", "HEAD_DIM")
        k, v = (block.input(name, *dims) for name in ("k", "v"))
        made = "table = torch.randperm(BATCH * PAGES).view(BATCH, PAGES)"
        table = block.raw("table", ("BATCH", "PAGES"), made, kind="i")
        for name in ("k", "v"):
            block.line(f"{name} = {name}[table].flatten(1, 2).transpose(1, 2)")
        k, v = (node("gather", one, table, detail="pages") for one in (k, v))
    else:
        layout = "transposed" if draw.chance(0.5) else "contiguous"
        dims = ("BATCH", "KV_HEADS", "LENGTH", "HEAD_DIM")
        k, v = (block.input(name, *dims, layout=layout) for name in ("k", "v"))
    made = f"lengths = torch.randint({length} // 4, {length} + 1, (BATCH,))"
    lengths = block.raw("lengths", ("BATCH",), made, kind="i")
    root = _scores_changed(block, _scores(block, q, k, query="q[:, :, None]"))
    block.line(f"place = torch.arange({length}, device=q.device)")
    block.line("seen = place < lengths[:, None]")
    if window:
        block.line("seen = seen & (place >= lengths[:, None] - WINDOW)")
    block.line('scores = scores.masked_fill(~seen[:, None, None], float("-inf"))')
    root = node("where", root, lengths, detail="window" if window else "lengths")
    out = node("matmul", _weights(block, root, "1", "WINDOW" if window else f"({length}) / 2"), v, detail="values")
    dims = ("BATCH", "HEADS", "HEAD_DIM")
    text, out = _gated(block, f"({block.narrow('weights', 'v')} @ values)[:, :, 0]", dims, out)
    block.returns((text, dims, out))
    _decode_sizes(block, paged=paged, window=window)


def _decode_sizes(block: Block, *, paged: bool, window: bool) -> None:
    draw = block.draw
    heads, kv_heads = draw.one(_GROUPS)
    width = block.size("HEAD_DIM", 64, draw.one((64, 128)))
    group = heads // kv_heads
    elements = draw.one((2.0e9, 3.0e9)) / block.item_bytes / (2 + 4 * group)
    """Number of elements of the keys: both caches are read, then written and read for each head of queries."""
    length = draw.one((4096, 8192, 16384))
    batch = max(1, round(elements / (kv_heads * width * length)))
    cpu = 1536
    block.size("BATCH", 2, batch)
    block.size("HEADS", 8 if kv_heads > 1 else 4, heads)
    block.size("KV_HEADS", 2 if kv_heads > 1 else 1, kv_heads)
    if paged:
        page = draw.one((16, 32, 64))
        block.size("PAGES", cpu // page, length // page)
        block.size("PAGE", page)
    else:
        block.size("LENGTH", cpu, length)
    if window:
        block.size("WINDOW", 3 * cpu // 4, length // draw.one((2, 4)))
