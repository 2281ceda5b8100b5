"""Lowering of a reference's calls to nodes: pointwise operators, reductions of rows, scans."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import counts, dtypes, shapes
from cudal1_data.kernelgen.frontend.layout import moved, reshaped, split
from cudal1_data.kernelgen.frontend.values import Value, pointwise
from cudal1_data.kernelgen.ir import FLOATS, PLACES, How, Node
from cudal1_data.kernelgen.sizes import inverse
from cudal1_data.operators import BINARY, SPECIAL, UNARY

Arguments = Sequence[Value]
Axes = tuple[int, ...]
Named = Mapping[str, Value]


_FEW_ROWS = 32
"""Maximum number of rows that do not occupy a GPU; long ones are first reduced in parts."""
_LONG_ROW = 2**16
"""Minimum number of elements of a row to reduce it in parts."""


class Unfused:
    """Marker of a call that no kernel computes; None would be a value."""


def fused(name: str, args: Arguments, named: Named) -> Value | Unfused:
    """Return the node of a call that kernels can compute, else Unfused.

    Args:
        name: Last part of the function's name.
        args: Arguments by position, the tensor of a method first.
        named: Arguments by name.
    """
    args = [counts.as_places(one) for one in args]
    first = args[0] if args else None
    if not isinstance(first, Node):
        return Unfused()
    if name == "where":
        return _where(args) if not named else Unfused()
    kinds = {one.dtype for one in args if isinstance(one, Node)}
    if kinds - {*FLOATS, "bool"}:
        return Unfused()
    if kinds == {"bool"} and name in ("tril", "triu"):
        return Unfused()
    if kinds == {"bool"} and (name in UNARY or name in BINARY or name in _POINTWISE or name in _ROWS):
        raise UnsuitableError(f"{name} has boolean operands; templates read numbers there")
    if name in UNARY and len(args) == 1 and not named:
        return pointwise(UNARY[name], first)
    if name in BINARY and len(args) == 2 and not named:
        return pointwise(BINARY[name], *args)
    if name in _POINTWISE:
        return _POINTWISE[name](args, named)
    if name in _ROWS:
        return _rows(name, first, args, named)
    return Unfused()


def _where(args: Arguments) -> Value | Unfused:
    if len(args) != 3 or not (isinstance(args[0], Node) and args[0].dtype == "bool"):
        return Unfused()
    if any(isinstance(one, Node) and one.dtype not in FLOATS for one in args[1:]) or _whole(args[1:]):
        return Unfused()
    return pointwise(SPECIAL["where"], *args, dtype=dtypes.promoted(*args[1:]))


def _whole(values: Arguments) -> bool:
    return all(isinstance(one, int) for one in values)


def _only(args: Arguments, named: Named, most: int, *names: str) -> None:
    """Raise an error if a call has more than `most` positional arguments or other named ones."""
    if len(args) > most or set(named) - set(names):
        raise UnsuitableError(
            f"{len(args)} arguments and {sorted(named)} by name are given; templates read {most} and {names}"
        )


def _masked_fill(args: Arguments, named: Named) -> Value | Unfused:
    """Lower `x.masked_fill(mask, number)`; an inverted mask swaps the choices."""
    if len(args) != 3 or named or not isinstance(args[2], int | float):
        return Unfused()
    x, mask, value = args
    if not isinstance(x, Node) or x.dtype not in FLOATS or not isinstance(mask, Node) or mask.dtype != "bool":
        return Unfused()
    if mask.expression == "1.0 - a":
        return pointwise(SPECIAL["where"], mask.operands[0], x, value, dtype=x.dtype)
    return pointwise(SPECIAL["where"], mask, value, x, dtype=x.dtype)


def _gelu(args: Arguments, named: Named) -> Node:
    _only(args, named, 1, "approximate")
    return pointwise(SPECIAL["gelu_tanh" if named.get("approximate") == "tanh" else "gelu"], args[0])


def _leaky(args: Arguments, named: Named) -> Node:
    _only(args, named, 2, "negative_slope")
    slope = args[1] if len(args) > 1 else named.get("negative_slope", 0.01)
    return pointwise(SPECIAL["leaky_relu"], args[0], slope)


def _clamp(args: Arguments, named: Named) -> Node:
    _only(args, named, 3, "min", "max")
    low = args[1] if len(args) > 1 else named.get("min")
    high = args[2] if len(args) > 2 else named.get("max")
    result = args[0]
    if low is not None:
        result = pointwise(BINARY["maximum"], result, low)
    if high is not None:
        result = pointwise(BINARY["minimum"], result, high)
    assert isinstance(result, Node)
    return result


def _softshrink(args: Arguments, named: Named) -> Node:
    _only(args, named, 2, "lambd")
    edge = args[1] if len(args) > 1 else named.get("lambd", 0.5)
    if not isinstance(edge, int | float):
        raise UnsuitableError("the edge of softshrink is no number")
    return pointwise(SPECIAL["softshrink"], args[0], -edge, edge)


_POWERS = {2: UNARY["square"], 3: "a * a * a", 4: "(a * a) * (a * a)", 0.5: UNARY["sqrt"], -1: UNARY["reciprocal"]}


def _pow(args: Arguments, named: Named) -> Value | Unfused:
    power = args[1]
    return pointwise(_POWERS[power], args[0]) if isinstance(power, int | float) and power in _POWERS else Unfused()


def _elu(args: Arguments, named: Named) -> Node:
    _only(args, named, 2, "alpha")
    alpha = args[1] if len(args) > 1 else named.get("alpha", 1.0)
    if not isinstance(alpha, int | float):
        raise UnsuitableError("the alpha of elu is no number")
    return pointwise("where(less(0.0, a), a, b * expm1(a))", args[0], alpha)


def _hardtanh(args: Arguments, named: Named) -> Node:
    _only(args, named, 3, "min_val", "max_val")
    low = args[1] if len(args) > 1 else named.get("min_val", -1.0)
    high = args[2] if len(args) > 2 else named.get("max_val", 1.0)
    return _clamp((args[0], low, high), {})


def _softplus(args: Arguments, named: Named) -> Value | Unfused:
    plain = len(args) == 1 and named.get("beta", 1) == 1 and named.get("threshold", 20) == 20
    return pointwise(UNARY["softplus"], args[0]) if plain and set(named) <= {"beta", "threshold"} else Unfused()


def _extreme(kind: str) -> Callable[[Arguments, Named], Value | Unfused]:
    """Return the lowering of `torch.max` or `torch.min`: of `(x, y)`, `(x, dim)` or `(x)`."""

    def lower(args: Arguments, named: Named) -> Value | Unfused:
        first = args[0]
        if len(args) == 2 and not named and isinstance(args[1], Node | float):
            return pointwise(BINARY["maximum" if kind == "max" else "minimum"], *args)
        return _rows(kind, first, args, named) if isinstance(first, Node) else Unfused()

    return lower


def _triangle(kind: str) -> Callable[[Arguments, Named], Value | Unfused]:
    """Return the lowering of `torch.tril(x)` or `torch.triu(x)`: the other side of a diagonal is 0."""

    def lower(args: Arguments, named: Named) -> Value | Unfused:
        x, diagonal = args[0], args[1] if len(args) > 1 else named.get("diagonal", 0)
        if not isinstance(x, Node) or not isinstance(diagonal, int) or len(x.dims) < 2 or x.kind == "opaque":
            return Unfused()
        mask = counts.triangle(x, lower=kind == "tril", diagonal=diagonal)
        return Unfused() if mask is None else pointwise(SPECIAL["where"], mask, x, 0.0)

    return lower


def _lerp(args: Arguments, named: Named) -> Node:
    _only(args, named, 3)
    if len(args) < 3:
        raise UnsuitableError("lerp has no weight")
    return pointwise(SPECIAL["lerp"], *args)


def _reduced_by(args: Arguments, named: Named) -> bool:
    """Return whether a loss keeps its elements and has no setting but its edge."""
    return len(args) == 2 and named.get("reduction") == "none" and set(named) <= {"reduction", "delta", "beta"}


def _huber(args: Arguments, named: Named) -> Value | Unfused:
    edge = named.get("delta", 1.0)
    if not _reduced_by(args, named) or not isinstance(edge, int | float):
        return Unfused()
    away = pointwise("abs(a - b)", *args)
    return pointwise(SPECIAL["huber"], away, edge)


def _smooth_l1(args: Arguments, named: Named) -> Value | Unfused:
    edge = named.get("beta", 1.0)
    if not _reduced_by(args, named) or not isinstance(edge, int | float) or edge <= 0:
        return Unfused()
    away = pointwise("abs(a - b)", *args)
    return pointwise(SPECIAL["smooth_l1"], away, edge)


def _averaged(
    loss: Callable[[Arguments, Named], Value | Unfused],
) -> Callable[[Arguments, Named], Value | Unfused]:
    """Return the lowering of a loss of two tensors, with its `reduction` applied."""

    def lower(args: Arguments, named: Named) -> Value | Unfused:
        how = named.get("reduction", "mean")
        each = loss(args, {**named, "reduction": "none"})
        if isinstance(each, Node) and how in ("mean", "sum", "batchmean"):
            whole = lowered("mean" if how == "mean" else "sum", each, tuple(range(len(each.dims))))
            return pointwise("a * b", whole, inverse(each.dims[0])) if how == "batchmean" else whole
        return each if how == "none" else Unfused()

    return lower


def _distance(expression: str) -> Callable[[Arguments, Named], Value | Unfused]:
    def lower(args: Arguments, named: Named) -> Value | Unfused:
        return pointwise(expression, *args) if _reduced_by(args, named) else Unfused()

    return lower


def _cross_entropy_of_two(args: Arguments, named: Named) -> Value | Unfused:
    if not _reduced_by(args, named):
        return Unfused()
    return pointwise(SPECIAL["binary_cross_entropy_with_logits"], *args)


_POINTWISE: dict[str, Callable[[Arguments, Named], Value | Unfused]] = {
    "gelu": _gelu,
    "leaky_relu": _leaky,
    "clamp": _clamp,
    "masked_fill": _masked_fill,
    "elu": _elu,
    "hardtanh": _hardtanh,
    "softplus": _softplus,
    "max": _extreme("max"),
    "min": _extreme("min"),
    "tril": _triangle("tril"),
    "triu": _triangle("triu"),
    "softshrink": _softshrink,
    "pow": _pow,
    "lerp": _lerp,
    "huber_loss": _averaged(_huber),
    "smooth_l1_loss": _averaged(_smooth_l1),
    "binary_cross_entropy_with_logits": _averaged(_cross_entropy_of_two),
    "mse_loss": _averaged(_distance("(a - b) * (a - b)")),
    "l1_loss": _averaged(_distance("abs(a - b)")),
    # For a target of 0 the product is its limit, 0.
    "kl_div": _averaged(_distance("where(less(0.0, b), b * (log(b) - a), 0.0)")),
}

_ROWS: dict[str, str] = {
    "sum": "dim",
    "mean": "dim",
    "amax": "dim",
    "amin": "dim",
    "argmax": "dim",
    "argmin": "dim",
    "max": "dim",
    "min": "dim",
    "var": "dim",
    "std": "dim",
    "softmax": "dim",
    "softmin": "dim",
    "log_softmax": "dim",
    "logsumexp": "dim",
    "cumsum": "dim",
    "cumprod": "dim",
    "cosine_similarity": "dim",
    "vector_norm": "dim",
    "norm": "dim",
}


def _rows(name: str, node: Node, args: Arguments, named: Named) -> Value | Unfused:
    if name == "norm":
        given = dict(zip(("p", "dim", "keepdim"), args[1:], strict=False)) | dict(named)
        if given.pop("p", 2) not in (2, 2.0, "fro", None) or set(given) - {"dim", "keepdim"}:
            return Unfused()
        args, named, name = (node,), given, "vector_norm"
    if name == "vector_norm" and (len(args) > 1 or set(named) - {"dim", "keepdim"}):
        return Unfused()  # the order may differ from 2
    given = args[2:] if name == "cosine_similarity" else args[1:]
    if given and isinstance(given[0], Node):
        return Unfused()
    asked = reduction(name, given, named)
    if asked.dtype not in ("", "float32"):
        return Unfused()
    if asked.dtype and node.dtype in _HALVES:
        node = pointwise("a", node, dtype="float32")
    count = len(node.dims)
    dim = _implied(name, count) if asked.dim is None else asked.dim
    axes = tuple(range(count) if dim in (None, ()) else sorted({place % count for place in shapes.ints(dim)}))
    if not axes or math.prod(node.dims) == 0 or (name in PLACES and len(axes) > 1):
        return Unfused()
    if name in ("max", "min") and asked.dim is None:
        name = f"a{name}"
    if name == "cosine_similarity":
        return _cosine(args, axes, asked.eps)
    return lowered(name, node, axes, keepdim=asked.keepdim, correction=asked.correction)


def _implied(name: str, count: int) -> int | None:
    """Return the axis of a call that names none, for a tensor of `count` axes; None for all."""
    if name in ("softmax", "softmin", "log_softmax"):
        return 0 if count in (0, 1, 3) else 1
    return 1 if name == "cosine_similarity" else None


@dataclass(frozen=True)
class Reduction:
    """The settings of a reduction."""

    dim: Value
    """Axes; None for all."""
    keepdim: bool
    """Whether they are kept, with size 1."""
    correction: float
    """For a variance: subtracted from the number of elements."""
    eps: float
    """For an angle: the minimum length."""
    dtype: str
    """Dtype of the sums and the result; empty for the operand's."""


_PLACES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("softmax", "softmin", "log_softmax", "cumsum", "cumprod"), ("dim",)),
    **dict.fromkeys(("var", "std"), ("dim", "unbiased", "keepdim")),
    "cosine_similarity": ("dim", "eps"),
    "vector_norm": (),
}
"""Positional arguments after the tensors, if not `dim, keepdim`."""


def reduction(name: str, given: Arguments, named: Named) -> Reduction:
    """Return the settings of a call's reduction.

    Args:
        name: Last part of the function's name.
        given: Positional arguments after the tensors.
        named: Arguments by name.

    Raises:
        UnsuitableError: A setting is not supported.
    """
    places = _PLACES.get(name, ("dim", "keepdim"))
    also = {"correction", "unbiased", "keepdim"} if name in ("var", "std") else {"dim", "keepdim", "dtype"}
    if len(given) > len(places) or set(named) - {*places, *also}:
        raise UnsuitableError(
            f"{name} has {given} arguments by position and {sorted(named)} by name; templates read {places} by position"
        )
    asked: dict[str, Value] = {**dict(zip(places, given, strict=False)), **named}
    correction = asked.get("correction", 1)
    if asked.get("unbiased") is not None:
        correction = int(bool(asked["unbiased"]))
    eps, keepdim = asked.get("eps", 1e-8), asked.get("keepdim", False)
    if not isinstance(correction, int | float) or not isinstance(eps, int | float) or not isinstance(keepdim, bool):
        raise UnsuitableError(f"{name} has settings that are unknown without running the program")
    dtype = dtypes.asked(asked["dtype"]) if asked.get("dtype") is not None else ""
    return Reduction(asked.get("dim"), keepdim, correction, eps, dtype)


_HALVES = ("float16", "bfloat16")
_ROUNDED_ONCE = ("mean", "var", "std", "vector_norm", "logsumexp", "softmax", "log_softmax", "softmin")
"""Calls that PyTorch computes in float32 for half precision, and rounds only at the end."""


def lowered(name: str, x: Node, axes: Axes, *, keepdim: bool = False, correction: float = 1) -> Value:
    """Return a reduction, a softmax or a scan as reductions, scans and pointwise operators.

    Args:
        name: Its name in PyTorch.
        x: Its operand.
        axes: Its axes, counted from the front, in order.
        keepdim: Whether these axes are kept, with size 1.
        correction: For a variance: subtracted from the number of elements.
    """
    if x.dtype in _HALVES and name in _ROUNDED_ONCE:
        wide = lowered(name, pointwise("a", x, dtype="float32"), axes, keepdim=keepdim, correction=correction)
        assert isinstance(wide, Node)
        return pointwise("a", wide, dtype=x.dtype)
    length = math.prod(x.dims[axis] for axis in axes)
    match name:
        case "sum":
            return over("sum", x, axes, keepdim=keepdim)
        case "mean":
            return pointwise("a * b", over("sum", x, axes, keepdim=keepdim), inverse(length))
        case "amax" | "amin":
            return over("max" if name == "amax" else "min", x, axes, keepdim=keepdim)
        case "argmax" | "argmin":
            return over(name, x, axes, keepdim=keepdim)
        case "max" | "min":
            return over("max" if name == "max" else "min", x, axes, keepdim=keepdim), None
        case "var" | "std":
            middle = pointwise("a * b", over("sum", x, axes), inverse(length))
            total = over("sum", pointwise("(a - b) * (a - b)", x, middle), axes, keepdim=keepdim)
            if length <= correction:
                raise UnsuitableError(f"{name} has rows of {correction} elements or fewer; its correction needs more")
            whole = correction == int(correction)
            count = inverse(length - int(correction)) if whole else 1.0 / (length - correction)
            spread = pointwise("a * b", total, count)
            return spread if name == "var" else pointwise("sqrt(a)", spread)
        case "vector_norm":
            return pointwise("sqrt(a)", over("sum", pointwise("a * a", x), axes, keepdim=keepdim))
        case "cumsum" | "cumprod":
            (axis,), last = axes, len(x.dims) - 1
            if axis == last:
                how = "sum" if name == "cumsum" else "product"
                return Node("scan", x.dims, operands=(x,), how=how, trailing=1, dtype=x.dtype)
            scan = lowered(name, moved(x, (*range(axis), *range(axis + 1, last + 1), axis)), (last,))
            assert isinstance(scan, Node)
            return moved(scan, (*range(axis), last, *range(axis, last)))
        case "softmin":
            return lowered("softmax", pointwise("-a", x), axes, keepdim=keepdim, correction=correction)
        case _:
            return _exponential(name, x, axes, keepdim=keepdim)


def _exponential(name: str, x: Node, axes: Axes, *, keepdim: bool) -> Node:
    if name == "logsumexp":
        top, again = over("max", x, axes), over("max", x, axes, keepdim=keepdim)
        total = over("sum", pointwise("exp(a - b)", x, top), axes, keepdim=keepdim)
        return pointwise("a + log(b)", again, total)
    shifted = pointwise("a - b", x, over("max", x, axes))
    powers = pointwise("exp(a)", shifted)
    total = over("sum", powers, axes)
    return pointwise("a / b", powers, total) if name == "softmax" else pointwise("a - log(b)", shifted, total)


def _cosine(args: Arguments, axes: Axes, eps: float) -> Node:
    left, right = args[0], args[1]
    assert isinstance(left, Node)
    if not isinstance(right, Node) or left.dims != right.dims:
        raise UnsuitableError("cosine_similarity has tensors of different shapes; templates read one shape")
    dot = over("sum", pointwise("a * b", left, right), axes, keepdim=False)
    ones = [over("sum", pointwise("a * a", one), axes, keepdim=False) for one in (left, right)]
    lengths = [pointwise("max(sqrt(a), b)", one, eps) for one in ones]
    return pointwise("a / (b * c)", dot, *lengths)


def normalized(x: Node, k: int, eps: Value, *, centred: bool = True) -> Node:
    """Return the rows of the last `k` axes, scaled to a mean square of 1, by default after subtracting their mean."""
    axes = tuple(range(len(x.dims) - k, len(x.dims)))
    scale = inverse(math.prod(x.dims[-k:]))
    if centred:
        x = pointwise("a - b", x, pointwise("a * b", over("sum", x, axes), scale))
    spread = pointwise("a * b", over("sum", pointwise("a * a", x), axes), scale)
    return pointwise("a * rsqrt(b + c)", x, spread, eps)


def over(how: How, x: Node, axes: Axes, *, keepdim: bool = True) -> Node:
    """Return a reduction over any axes as reductions of rows; few long rows are first reduced in parts."""
    count, k = len(x.dims), len(axes)
    kept = shapes.reduced(x.dims, axes, keepdim=True)
    if axes != tuple(range(count - k, count)):
        order = (*(place for place in range(count) if place not in axes), *axes)
        inner = _reduce(how, moved(x, order), k, keepdim=keepdim)
        return reshaped(inner, kept) if keepdim else inner
    rows, length = math.prod(x.dims[: count - k]), math.prod(x.dims[count - k :])
    if rows > _FEW_ROWS or length < _LONG_ROW or how in PLACES:
        return _reduce(how, x, k, keepdim=keepdim)
    if k > 1:
        enough = (place for place in range(1, k) if rows * math.prod(x.dims[count - k :][:place]) > 2 * _FEW_ROWS)
        return _reduce(how, _reduce(how, x, k - next(enough, k - 1), keepdim=True), k, keepdim=keepdim)
    parts = next((size for size in (256, 128, 64) if length % size == 0), 1)
    result = _reduce(how, _reduce(how, split(x, parts), 1, keepdim=True), 2, keepdim=keepdim)
    return reshaped(result, kept) if keepdim else result


def _reduce(how: How, x: Node, k: int, *, keepdim: bool) -> Node:
    axes = range(len(x.dims) - k, len(x.dims))
    dims = shapes.reduced(x.dims, axes, keepdim=keepdim)
    dtype = "int64" if how in PLACES else x.dtype
    return Node("reduce", dims, operands=(x,), how=how, trailing=k, keepdim=keepdim, dtype=dtype)
