"""Operators on queries and keys before attention: rotary embeddings, norms of each head, a cache."""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_data.generator.families.llm.block import Block, chosen, node
from cudal1_data.generator.families.llm.norms import root_mean_square
from cudal1_data.generator.structure import Node

_HEADS = ((32, 8), (16, 8), (32, 4), (24, 8), (16, 2), (8, 1), (28, 4), (64, 8))
"""Number of heads of queries, and of keys and values, in published models."""


@dataclass(frozen=True)
class _Rotation:
    """A rotation of pairs of numbers."""

    interleaved: bool
    """Whether the numbers of a pair are adjacent; otherwise one is in each half of a head."""
    partial: bool
    """Whether only the first half of a head is rotated."""
    cos: Node
    sin: Node
    place: str
    """Index that adds the dimension of the heads to the tables; empty if not needed."""

    def spread(self, block: Block) -> None:
        """Add the dimension of the heads to the tables."""
        if self.place:
            block.line(f"cos, sin = cos{self.place}, sin{self.place}")

    def lines(self, block: Block, name: str) -> None:
        """Write the rotation of the named tensor, which is in the wide dtype."""
        if self.partial:
            block.line(f"{name}, kept = {name}.chunk(2, dim=-1)")
        if self.interleaved:
            block.line(f"first, second = {name}[..., ::2], {name}[..., 1::2]")
        else:
            block.line(f"first, second = {name}.chunk(2, dim=-1)")
        parts = "(first * cos - second * sin, second * cos + first * sin"
        if self.interleaved:
            block.line(f"{name} = torch.stack({parts}), dim=-1).flatten(-2)")
            if self.partial:
                block.line(f"{name} = torch.cat(({name}, kept), dim=-1)")
        else:
            block.line(f"{name} = torch.cat({parts}{', kept' if self.partial else ''}), dim=-1)")

    def node(self, x: Node) -> Node:
        """Return the structure of the result."""
        form = "strided" if self.interleaved else "halves"
        first, second = node(form, x, detail="first"), node(form, x, detail="second")
        rotated = node("sub", node("mul", first, self.cos), node("mul", second, self.sin))
        other = node("add", node("mul", second, self.cos), node("mul", first, self.sin))
        kept = [node("rest", x)] if self.partial else []
        return node("interleave" if self.interleaved else "cat", rotated, other, *kept)


def _rotation(block: Block, *, heads_first: bool, position: str = "", of_each: bool | None = None) -> _Rotation:
    """Add tables of cosines and sines to the inputs.

    Args:
        block: The block.
        heads_first: Whether heads come before tokens in the rotated tensor's shape.
        position: Expression of each token's position in `get_inputs`; by default a sequence has a random start.
        of_each: Whether each sequence has its own positions; by default in half of the tasks.
    """
    draw = block.draw
    of_each = draw.chance(0.5) if of_each is None else of_each
    partial = draw.chance(0.2)
    pairs = "HEAD_DIM // 4" if partial else "HEAD_DIM // 2"
    base = draw.one((10000.0, 10000.0, 500000.0, 1000000.0))
    position = position or f"torch.randint(8192, ({'BATCH, 1' if of_each else '1,'})) + torch.arange(TOKENS)"
    made = (
        f"position = {position}",
        f"angle = position[..., None] * {base} ** (-torch.arange({pairs}) / ({pairs}))",
    )
    dims = ("BATCH", "TOKENS", pairs) if of_each else ("TOKENS", pairs)
    cos = block.raw("cos", dims, *made, "cos = torch.cos(angle)")
    sin = block.raw("sin", dims, "sin = torch.sin(angle)")
    place = ("[:, None]" if of_each else "") if heads_first else "[:, :, None]" if of_each else "[:, None]"
    return _Rotation(draw.chance(0.5), partial, cos, sin, place)


def _head_sizes(block: Block) -> None:
    draw = block.draw
    heads, kv_heads = draw.one(_HEADS)
    width = draw.one((64, 128))
    block.size("HEADS", 4, heads)
    block.size("KV_HEADS", 1 if kv_heads == 1 else 2, kv_heads)
    block.size("HEAD_DIM", width)
    batch = draw.one((2, 4, 8))
    block.size("BATCH", 2, batch)
    tokens = block.moved_elements(half=0.35, single=0.7) / (2 * batch * (heads + kv_heads) * width)
    block.rows("TOKENS", 4.5e5 / (6 * width), tokens, least=8)


def rotary(block: Block) -> None:
    """Write a rotation of queries and keys; some forms also store keys and values in a cache."""
    form = chosen(block.draw, ("plain", "slots", "positions"), (3, 2, 1))
    if form == "plain":
        _rotated_heads(block, normed=False)
    else:
        _cached(block, by_sequence=form == "positions")


def normed_heads(block: Block) -> None:
    """Write a norm of each head of queries and keys (QK-norm); some tasks also rotate them."""
    _rotated_heads(block, normed=True)


def _rotated_heads(block: Block, *, normed: bool) -> None:
    draw = block.draw
    heads_first = draw.chance(0.5)
    layout = "transposed" if heads_first and draw.chance(0.5) else "contiguous"
    dims = {
        name: ("BATCH", heads, "TOKENS", "HEAD_DIM") if heads_first else ("BATCH", "TOKENS", heads, "HEAD_DIM")
        for name, heads in (("q", "HEADS"), ("k", "KV_HEADS"))
    }
    roots = {name: block.input(name, *dims[name], layout=layout) for name in dims}
    rotation = None if normed and draw.chance(0.4) else _rotation(block, heads_first=heads_first)
    length = normed and draw.chance(0.25)
    """Whether heads are divided by their length and have their own scale, as in vision transformers."""
    scaled = draw.chance(0.3)
    if block.half:
        block.line("dtype = q.dtype")
    if rotation is not None:
        rotation.spread(block)
    for name in dims:
        if block.half:
            block.line(f"{name} = {block.wide(name)}")
        if normed:
            roots[name] = _normed(block, name, roots[name], heads_first=heads_first, length=length)
        if rotation is not None:
            rotation.lines(block, name)
            roots[name] = rotation.node(roots[name])
    if scaled:
        block.line("q = q / HEAD_DIM**0.5")
        roots["q"] = node("scale", roots["q"])
    block.returns(*((_narrow(block, name), dims[name], roots[name]) for name in dims))
    _head_sizes(block)


def _narrow(block: Block, name: str) -> str:
    return f"{name}.to(dtype)" if block.half else name


def _normed(block: Block, name: str, root: Node, *, heads_first: bool, length: bool) -> Node:
    if length:
        heads = "HEADS" if name == "q" else "KV_HEADS"
        dims = (heads, "1", "1") if heads_first else (heads, "1")
        scale = block.weight(f"{name}_scale", *dims, text=f"8 + 2 * torch.randn({', '.join(dims)})")
        weight = block.wide(f"self.{name}_scale")
        block.line(f"{name} = {name} / torch.linalg.vector_norm({name}, dim=-1, keepdim=True) * {weight}")
        return node("mul", node("div", root, node("sum", node("square", root), detail="rows")), scale)
    found = root_mean_square(block, name, root, name)
    scale = block.weight(f"{name}_weight", "HEAD_DIM", text="1 + 0.2 * torch.randn(HEAD_DIM)")
    block.line(f"{name} = {name} * {block.wide(f'self.{name}_weight')}")
    return node("mul", found, scale)


def _cached(block: Block, *, by_sequence: bool) -> None:
    """Write a rotation of new tokens' heads, and an indexed store of keys and values.

    Args:
        block: The block.
        by_sequence: Whether each sequence has its own cache, which its tokens continue; otherwise the tokens of all
            sequences are in slots of one cache.
    """
    tokens = ("BATCH", "TOKENS") if by_sequence else ("TOKENS",)
    q = block.input("q", *tokens, "HEADS", "HEAD_DIM")
    k, v = (block.input(name, *tokens, "KV_HEADS", "HEAD_DIM") for name in ("k", "v"))
    if by_sequence:
        made = "torch.randint(LENGTH - TOKENS + 1, (BATCH, 1)) + torch.arange(TOKENS)"
        rotation = _rotation(block, heads_first=False, position=made, of_each=True)
        places, dims = block.raw("position", tokens, kind="i"), ("BATCH", "LENGTH", "KV_HEADS", "HEAD_DIM")
        where = "sequence, position"
        block.line("sequence = torch.arange(BATCH, device=k.device)[:, None]")
    else:
        rotation = _rotation(block, heads_first=False, of_each=False)
        places = block.raw("slots", tokens, "slots = torch.randperm(LENGTH)[:TOKENS]", kind="i")
        dims = ("LENGTH", "KV_HEADS", "HEAD_DIM")
        where = "slots"
    joint = block.draw.chance(0.5)
    if joint:
        caches = {"cache": block.input("cache", "2", *dims)}
    else:
        caches = {name: block.input(name, *dims) for name in ("keys", "values")}
    if block.half:
        block.line("dtype = q.dtype")
    roots = {"q": q, "k": k}
    rotation.spread(block)
    for name, root in roots.items():
        if block.half:
            block.line(f"{name} = {block.wide(name)}")
        rotation.lines(block, name)
        roots[name] = rotation.node(root)
    for name in caches:
        block.line(f"{name} = {name}.clone()")
    for number, (cache, new) in enumerate(zip(("keys", "values"), (_narrow(block, "k"), "v"), strict=True)):
        block.line(f"{f'cache[{number}, {where}]' if joint else f'{cache}[{where}]'} = {new}")
    if joint:
        written = {"cache": node("index_put", caches["cache"], places, roots["k"], v)}
    else:
        written = {
            name: node("index_put", caches[name], places, new)
            for name, new in zip(caches, (roots["k"], v), strict=True)
        }
    shape = ("2", *dims) if joint else dims
    block.returns(
        (_narrow(block, "q"), (*tokens, "HEADS", "HEAD_DIM"), roots["q"]),
        *((name, shape, root) for name, root in written.items()),
    )
    _cache_sizes(block, by_sequence=by_sequence)


def _cache_sizes(block: Block, *, by_sequence: bool) -> None:
    draw = block.draw
    heads, kv_heads = draw.one(_HEADS)
    width = block.size("HEAD_DIM", 64, draw.one((64, 128)))
    block.size("HEADS", 4, heads)
    block.size("KV_HEADS", 1 if kv_heads == 1 else 2, kv_heads)
    batch = draw.one((4, 8)) if by_sequence else 1
    if by_sequence:
        block.size("BATCH", 2, batch)
    tokens = block.moved_elements() / (batch * width * (2 * heads + 12 * kv_heads))
    block.rows("TOKENS", 768 if by_sequence else 1536, tokens)
    block.rows("LENGTH", 1536 if by_sequence else 3072, 2 * tokens)
