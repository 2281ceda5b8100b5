"""Results of calls: lowered to operators, or calls into PyTorch with known shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import dtypes, einsum, lookups, norms, pieces, shapes
from cudal1_data.kernelgen.frontend.attention import attention
from cudal1_data.kernelgen.frontend.cross_entropy import cross_entropy
from cudal1_data.kernelgen.frontend.exclusive import exclusive_sums
from cudal1_data.kernelgen.frontend.layout import repeated
from cudal1_data.kernelgen.frontend.operators import Unfused, fused, lowered, reduction
from cudal1_data.kernelgen.frontend.values import Symbol, Value, opaque, pointwise, shape, tensors, written
from cudal1_data.kernelgen.ir import FLOATS, Dims, Node, Window, broadcast
from cudal1_data.kernelgen.sizes import with_edges

_MAKES = ("randn", "rand", "randint", "randperm", "ones", "zeros", "arange", "eye", "empty")
_STORED = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "bool": "bool", "long": "int64"}
_SAME = (
    "flip",
    "abs",
    "tril",
    "triu",
    "one_hot",
    "roll",
    "cumprod",
    "index_add",
    "normalize",
    "softmax",
    "log_softmax",
    "cumsum",
    "softmin",
    "zeros_like",
    "ones_like",
    "instance_norm",
    "group_norm",
    "layer_norm",
    "argsort",
    "clamp",
)
_LARGEST_SCALE = 4
"""Up to this scale, integer division surely finds PyTorch's nearest element, for which it multiplies by the inverse."""
_COUNTED = ("arange", "ones", "tril", "triu")
"""Calls whose sizes `counts.py` parses as numbers."""
_ALIASES = {"multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div"}
"""Aliases of functions."""
_PRODUCTS = ("linear", "matmul", "bmm", "mm", "mv", "outer", "kron")
_PAIRS = ("cummax", "cummin", "sort", "topk")
"""Calls that return values and their indices."""


def call(name: str, text: str, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
    """Return the result of a call.

    Args:
        name: Last part of the function's name.
        text: The function's text; with a leading dot for a method of the first argument.
        args: Arguments by position.
        named: Arguments by name.

    Raises:
        UnsuitableError: The shape of its result is unknown.
    """
    if name == "get_default_dtype":
        return Symbol("torch.get_default_dtype()", dtype="float32")
    _refuse_unread(name, text, args, named)
    if name in ("to", *_STORED) and isinstance(args[0], Node):
        return _stored(name, args, named)
    if name == "detach" and len(args) == 1:
        return args[0]  # no gradients are computed
    if name == "tensor" and len(args) == 1 and not named and isinstance(args[0], int | float):
        return args[0]  # a tensor of one number acts like the number
    if name == "log" and len(args) == 1 and isinstance(args[0], int | float):
        return math.log(args[0])
    name = _ALIASES.get(name, name)
    if name.startswith("adaptive_avg_pool") and isinstance(args[0], Node) and len(args) == 2:
        return pooled_to(args[0], args[1], f"F.{name}({{0}}, {args[1]!r})", rank=int(name[-2]))
    for in_kernels in (_windows, _looked_up, _repeated, attention, exclusive_sums, einsum.as_product, cross_entropy):
        if (found := in_kernels(name, args, named)) is not None:
            return found
    if ("functional." in text or text.startswith("F.")) and (norm := norms.function(name, args, named)) is not None:
        return norm
    result = fused(name, args, named)
    if not isinstance(result, Unfused):
        # A clone may be changed in place.
        return replace(result, text="clone") if name == "clone" and isinstance(result, Node) else result
    if name == "flatten" and _interleaves(args, named):
        pairs = args[0]
        assert isinstance(pairs, Node)
        dims = (*pairs.dims[:-2], pairs.dims[-2] * pairs.dims[-1])
        return opaque(f"{pairs.text}.flatten(-2)", dims, *pairs.operands, dtype=pairs.dtype)
    nodes = [one for one in args if isinstance(one, Node)]
    operands: list[Node] = []
    by_name = name not in _COUNTED
    given = [written(one, operands, by_name=by_name) for one in args]
    given += [f"{key}={written(one, operands, by_name=by_name)}" for key, one in named.items()]
    if text.startswith("."):
        whole = f"{given[0]}{text}({', '.join(given[1:])})"
    else:
        whole = f"{text}({', '.join(given)})"
    if name in _PAIRS and nodes:
        dims = nodes[0].dims
        if name == "topk":
            dims = _best(nodes[0], args, named)
        values = opaque(f"{whole}[0]", dims, *operands, dtype=nodes[0].dtype)
        return values, opaque(f"{whole}[1]", dims, *operands, dtype="int64")
    dims = _dims(name, args, named)
    if name == "interpolate":
        dims = with_edges(dims, "enlarged")
    return _pool_call(name, args, named, opaque(whole, dims, *operands, dtype=_dtype(name, nodes, args, named)))


def _refuse_unread(name: str, text: str, args: Sequence[Value], named: Mapping[str, Value]) -> None:
    """Reject arguments that change what is computed: a tensor to write to, NumPy's `axis`, an order of matrix norms."""
    if "out" in named or named.get("inplace") or named.get("max_norm") is not None:
        raise UnsuitableError(f"{name} changes a tensor in place, which templates do not read")
    if "axis" in named:
        raise UnsuitableError(f"{name} has the argument axis; templates read dim")
    if text.endswith("linalg.norm") and _is_of_matrix(args, named):
        raise UnsuitableError("linalg.norm of a matrix has an order; templates read norms of vectors, with one dim")


def _is_of_matrix(args: Sequence[Value], named: Mapping[str, Value]) -> bool:
    """Return whether `linalg.norm` has an order by number and may be of matrices."""
    x, order, dim, *_ = (*args, None, None)[: max(3, len(args))]
    along = named.get("dim") if dim is None else dim
    vectors = isinstance(along, int) or (isinstance(x, Node) and len(x.dims) == 1)
    return isinstance(order, int | float) and not vectors


def _interleaves(args: Sequence[Value], named: Mapping[str, Value]) -> bool:
    """Return whether a call flattens the last two axes, and the last one comes from `torch.stack`."""
    stacked = args[0]
    given = (args[1] if len(args) == 2 else named.get("start_dim")) if len(args) + len(named) == 2 else None
    return (
        isinstance(stacked, Node)
        and isinstance(given, int)
        and given in (-2, len(stacked.dims) - 2)
        and stacked.text.startswith("torch.stack(")
        and stacked.text.endswith(", dim=-1)")
    )


def _stored(name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Node:
    node = args[0]
    assert isinstance(node, Node)
    if name in _STORED:
        dtype = _STORED[name]
    elif len(args) == 2 and isinstance(args[1], Symbol) and not named:
        same = args[1].dtype == "device" and node.dtype == "float32"
        dtype = "float32" if same else dtypes.asked(args[1])
    else:
        raise UnsuitableError(".to(...) has more than a dtype; templates read x.to(dtype)")
    if dtype in FLOATS and node.dtype in FLOATS:
        return pointwise("a", node, dtype=dtype)
    target = {"float32": "torch.get_default_dtype()"}.get(dtype, f"torch.{dtype}")
    return opaque(f"{{0}}.to({target})", node.dims, node, dtype=dtype)


def _best(x: Node, args: Sequence[Value], named: Mapping[str, Value]) -> Dims:
    """Return the shape of the largest elements along an axis."""
    given: dict[str, Value] = {**dict(zip(("k", "dim", "largest", "sorted"), args[1:], strict=False)), **named}
    place, (count,) = shapes.axis(x, given.get("dim", -1)), shapes.ints(given["k"])
    return (*x.dims[:place], count, *x.dims[place + 1 :])


def _dtype(name: str, nodes: Sequence[Node], args: Sequence[Value], named: Mapping[str, Value]) -> str:
    if named.get("dtype") is not None:
        return dtypes.asked(named["dtype"])
    if name in ("randint", "randperm", "arange", "argmax", "argmin", "argsort", "one_hot"):
        return "int64"
    if name == "pow":
        return dtypes.promoted(*args)
    if name == "where":
        if len(args) != 3 or not isinstance(args[0], Node) or args[0].dtype != "bool":
            raise UnsuitableError("where has no condition with two choices")
        return dtypes.promoted(*args[1:])
    if name in _MAKES and not nodes:
        return "float32"
    if name in _SEVERAL or name in _PRODUCTS:
        return dtypes.common(tensors(tuple(args)))
    return nodes[1 if name == "embedding" else 0].dtype


def _dims(name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Dims:
    first = args[0] if args else None
    if name in _MAKES and not isinstance(first, Node):
        return _made(name, args, named)
    nodes = [one for one in args if isinstance(one, Node)]
    if name in ("where", "pow"):
        return shape(*nodes)
    if name in _SEVERAL:
        return _SEVERAL[name](args, named)
    if not isinstance(first, Node) and name[0].isupper():
        raise UnsuitableError(f"{name} is a layer in a list or in another layer; templates read members of the model")
    if not isinstance(first, Node):
        raise UnsuitableError(f"the first argument of {name} is no tensor")
    if name in _SAME:
        return (*first.dims, *shapes.ints(args[1])) if name == "one_hot" else first.dims
    return _moved(name, first, args, named)


def _made(name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Dims:
    if unread := named.keys() & {"start", "end", "step", "n", "m"}:
        raise UnsuitableError(f"{name} has {sorted(unread)} by name; templates read sizes by position")
    if name == "randint":
        size = named.get("size", args[-1])
        if not isinstance(size, tuple):
            raise UnsuitableError("randint has no tuple of sizes")
        return shapes.ints(size)
    if name == "arange":
        return (math.ceil(shapes.ints(args[0])[0]),) if len(args) == 1 else (len(range(*shapes.ints(tuple(args)))),)
    if name == "eye":
        return shapes.ints(args[0]) * 2 if len(args) == 1 else shapes.ints(tuple(args))
    return shapes.ints(args[0] if isinstance(args[0], tuple) else tuple(args))


def _of_two(name: str, x: Node, rest: Sequence[Value]) -> Dims | None:
    """Return the result's shape of a call on two tensors; None for other calls."""
    match name:
        case "linear":
            assert isinstance(rest[0], Node)
            return (*x.dims[:-1], rest[0].dims[0])
        case "matmul" | "bmm" | "mm" | "mv":
            assert isinstance(rest[0], Node)
            return shapes.product(x.dims, rest[0].dims)
        case "embedding":
            assert isinstance(rest[0], Node)
            return (*x.dims, rest[0].dims[-1])
        case "gather":
            assert isinstance(rest[1], Node)
            return rest[1].dims
        case "index_select":
            assert isinstance(rest[1], Node)
            place = shapes.axis(x, rest[0])
            return (*x.dims[:place], *rest[1].dims, *x.dims[place + 1 :])
        case "outer":
            assert isinstance(rest[0], Node)
            return (*x.dims, *rest[0].dims)
        case "kron":
            assert isinstance(rest[0], Node)
            return tuple(one * other for one, other in zip(x.dims, rest[0].dims, strict=True))
        case "expand_as":
            assert isinstance(rest[0], Node)
            return broadcast(x.dims, rest[0].dims)
        case _:
            return None


def _moved(name: str, x: Node, args: Sequence[Value], named: Mapping[str, Value]) -> Dims:
    rest = tuple(args[1:])
    if (dims := _of_two(name, x, rest)) is not None:
        return dims
    match name:
        case "transpose":
            return shapes.swapped(x.dims, shapes.axis(x, rest[0]), shapes.axis(x, rest[1]))
        case "t":
            return x.dims[::-1]
        case "permute":
            order = shapes.ints(rest[0] if isinstance(rest[0], tuple) else rest)
            return tuple(x.dims[place] for place in order)
        case "reshape" | "view":
            return shapes.reshaped(x.dims, shapes.ints(rest[0] if isinstance(rest[0], tuple) else rest))
        case "unsqueeze":
            (place,) = shapes.ints(rest[0])
            place = place % (len(x.dims) + 1)
            return (*x.dims[:place], 1, *x.dims[place:])
        case "diag" if len(x.dims) == 1 and not rest and not named:
            return (x.dims[0], x.dims[0])
        case "contiguous":
            return x.dims
        case "squeeze":
            chosen = rest[0] if rest else named.get("dim")
            places = range(len(x.dims)) if chosen is None else {shapes.axis(x, one) for one in shapes.ints(chosen)}
            return tuple(size for place, size in enumerate(x.dims) if place not in places or size != 1)
        case "select":
            return shapes.reduced(x.dims, [shapes.axis(x, rest[0])], keepdim=False)
        case "narrow":
            return (*x.dims[: shapes.axis(x, rest[0])], *shapes.ints(rest[2]), *x.dims[shapes.axis(x, rest[0]) + 1 :])
        case "expand":
            sizes = shapes.ints(rest[0] if isinstance(rest[0], tuple) else rest)
            padded = (1,) * (len(sizes) - len(x.dims)) + x.dims
            return tuple(old if new == -1 else new for old, new in zip(padded, sizes, strict=True))
        case "repeat_interleave" if rest:
            count, *more = rest
            place = shapes.axis(x, next(iter(more), named.get("dim")))
            (times,) = shapes.ints(count)
            return (*x.dims[:place], x.dims[place] * times, *x.dims[place + 1 :])
        case "flatten":
            given: dict[str, Value] = {**dict(zip(("start_dim", "end_dim"), rest, strict=False)), **named}
            start, end = (shapes.axis(x, given.get(key, place)) for key, place in (("start_dim", 0), ("end_dim", -1)))
            return (*x.dims[:start], math.prod(x.dims[start : end + 1]), *x.dims[end + 1 :])
        case "interpolate" if not rest and set(named) == {"scale_factor"}:
            (scale,) = shapes.ints(named["scale_factor"])
            return (*x.dims[:2], *(size * scale for size in x.dims[2:]))
        case _ if re.fullmatch(r"(?:avg|max|lp)_pool[123]d", name) and "ceil_mode" not in named:
            return _pooled(name, x, rest, named)
        case "mean" | "sum" | "amax" | "amin" | "var" | "std" | "argmax" | "argmin" | "prod" | "logsumexp":
            asked = reduction(name, rest, named)
            chosen = () if asked.dim is None else shapes.ints(asked.dim)
            axes = [shapes.axis(x, one) for one in chosen] or range(len(x.dims))
            return shapes.reduced(x.dims, axes, keepdim=asked.keepdim)
        case _:
            raise UnsuitableError(f"the shape of the result of {name} is unknown")


def _stacked(args: Sequence[Value], named: Mapping[str, Value]) -> Dims:
    """Return the shape of stacked tensors of one shape."""
    given = next(iter(args), None)
    parts = given if isinstance(given, tuple) else ()
    if not parts or not all(isinstance(one, Node) for one in parts):
        raise UnsuitableError("stack has no list of tensors")
    dims = {one.dims for one in parts if isinstance(one, Node)}
    if len(dims) != 1:
        raise UnsuitableError(f"stack has tensors of different shapes, {sorted(dims)}")
    (inner,) = dims
    (axis,) = shapes.ints(args[1] if len(args) > 1 else named.get("dim", 0))
    axis %= len(inner) + 1
    return (*inner[:axis], len(parts), *inner[axis:])


def _block_diagonal(args: Sequence[Value], named: Mapping[str, Value]) -> Dims:
    """Return the shape of a matrix with `*blocks` on its diagonal."""
    blocks = next(iter(args), None)
    if len(args) != 1 or not isinstance(blocks, Symbol) or blocks.of is None or len(blocks.of.dims) != 3:
        raise UnsuitableError("block_diag is read as block_diag(*blocks) of one tensor of matrices only")
    count, high, wide = blocks.of.dims
    return count * high, count * wide


def _joined(args: Sequence[Value], named: Mapping[str, Value]) -> Dims:
    """Return the shape of concatenated tensors."""
    parts = [one for one in args[0] if isinstance(one, Node)] if isinstance(args[0], tuple) else []
    if not parts or not isinstance(args[0], tuple) or len(parts) != len(args[0]):
        raise UnsuitableError("cat has no list of tensors")
    place = shapes.axis(parts[0], args[1] if len(args) > 1 else named.get("dim", 0))
    first = parts[0].dims
    rest = {(*one.dims[:place], *one.dims[place + 1 :]) for one in parts}
    if len(rest) != 1:
        raise UnsuitableError(f"cat has tensors whose shapes differ in other axes than {place}")
    return (*first[:place], sum(one.dims[place] for one in parts), *first[place + 1 :])


_SEVERAL: dict[str, Callable[[Sequence[Value], Mapping[str, Value]], Dims]] = {
    "stack": _stacked,
    "cat": _joined,
    "block_diag": _block_diagonal,
    "einsum": einsum.summed,
}
"""Calls whose first argument is no tensor."""


_POOL = re.compile(r"(?:avg|max)_pool[123]d")


def _pooled(name: str, x: Node, rest: tuple[Value, ...], named: Mapping[str, Value]) -> Dims:
    """Return the shape after pooling."""
    given = rest[1:] if name.startswith("lp_") else rest
    most = 2 if name.startswith("lp_") else 3
    if len(x.dims) != int(name[-2]) + 2 or len(given) > most or "dilation" in named or "return_indices" in named:
        raise UnsuitableError(f"{name} is read with a batch of maps, and without dilation and return_indices, only")
    dims = shapes.windows(x.dims, {**dict(zip(("kernel_size", "stride", "padding"), given, strict=False)), **named})
    return with_edges(dims, name[: -len("2d")])


def _windows(name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Node | None:
    """Return averages or maxima of windows in kernels; None if PyTorch computes them."""
    if _POOL.fullmatch(name) is None or not isinstance(args[0], Node):
        return None
    x, rest = args[0], tuple(args[1:])
    if set(named) - {"kernel_size", "stride", "padding"}:
        return None
    given = _window_given(rest, named)
    return windows_of(x, _pooled(name, x, rest, named), given, average=name.startswith("avg"))


def _pool_call(name: str, args: Sequence[Value], named: Mapping[str, Value], call: Node) -> Node:
    """Return a call as a pool that kernels can replace; the call itself if it is no pool."""
    if _POOL.fullmatch(name) is None:
        return call
    return pool(call, _window_given(args[1:], named), average=name.startswith("avg"))


def _window_given(rest: Sequence[Value], named: Mapping[str, Value]) -> dict[str, Value]:
    return {**dict(zip(("kernel_size", "stride", "padding"), rest, strict=False)), **named}


def _looked_up(name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Node | None:
    """Return elements of a table that kernels read in place; None if PyTorch looks them up."""
    match name, args:
        case "embedding", [index, table] if not named:
            return lookups.rows(table, index, "F.embedding({1}, {0})")
        case "index_select", [table, 0, index] if not named and isinstance(index, Node) and len(index.dims) == 1:
            return lookups.rows(table, index, "{0}[{1}]")
        case "gather", [table, axis, index] if not named:
            return lookups.along(table, axis, index)
        case _:
            return None


def _repeated(name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Node | None:
    """Return maps enlarged by their nearest elements in kernels; None if PyTorch does it."""
    if name != "interpolate" or len(args) != 1 or not isinstance(x := args[0], Node) or x.dtype not in FLOATS:
        return None
    times = named.get("scale_factor")
    if set(named) - {"scale_factor", "mode"} or named.get("mode", "nearest") != "nearest":
        return None
    return repeated(x, 2, times) if isinstance(times, int) and 1 < times <= _LARGEST_SCALE else None


def windows_of(x: Node, dims: Dims, given: Mapping[str, Value], *, average: bool) -> Node | None:
    """Return windows of a batch of maps in kernels; None if PyTorch computes them.

    Args:
        x: The maps.
        dims: The shape of the result.
        given: `kernel_size`, and optionally `stride`, `padding` and `dilation`.
        average: Whether elements are averaged; otherwise their maximum is taken.
    """
    window, stride, padding, dilation = shapes.window_settings(len(x.dims) - 2, given)
    if any(padding) or any(one != 1 for one in dilation):
        return None
    return pieces.pooled(x, dims, window, stride, average=average)


def pool(call: Node, given: Mapping[str, Value], *, average: bool) -> Node:
    """Return a pool of maps as a call that kernels can replace, if its settings are those of windows.

    Args:
        call: The call.
        given: Its settings by name.
        average: Whether elements are averaged, zeros around the maps included; otherwise their maximum is taken.
    """
    if set(given) - {"kernel_size", "stride", "padding", "dilation"}:
        return call
    edges, stride, padding, dilation = shapes.window_settings(len(call.dims) - 2, given)
    window = Window(edges, stride, padding, dilation, groups=call.dims[1], transposed=False)
    return replace(call, window=window, how="sum" if average else "max")


def pooled_to(x: Node, size: Value, text: str, *, rank: int) -> Value:
    """Return an adaptive average pool to `size`; with one window per map, a mean of rows.

    Args:
        x: A batch of maps.
        size: The sizes of the result's maps.
        text: The call.
        rank: Number of the maps' axes.

    Raises:
        UnsuitableError: The sizes are unknown, or `x` has other axes.
    """
    sizes = (shapes.ints(size) * rank)[:rank] if isinstance(size, int) else shapes.ints(size)
    if len(x.dims) != rank + 2 or len(sizes) != rank:
        raise UnsuitableError(
            f"an adaptive pool of {x.dims} to {sizes} is not read; it needs a batch, and {rank} sizes"
        )
    if all(one == 1 for one in sizes):
        return lowered("mean", x, tuple(range(2, rank + 2)), keepdim=True)
    return opaque(text, (*x.dims[:2], *sizes), x)
