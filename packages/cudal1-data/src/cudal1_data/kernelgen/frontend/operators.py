"""From a call in a reference to a node of its graph: pointwise operators, reductions of rows, scans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import counts, dtypes, shapes
from cudal1_data.kernelgen.frontend.values import Layer, Value, pointwise
from cudal1_data.kernelgen.ir import How, Node
from cudal1_data.operators import BINARY, SPECIAL, UNARY

Arguments = Sequence[Value]
Named = Mapping[str, Value]


class Unfused:
    """Says of a call that no kernel computes it; None would be a value."""


def fused(name: str, args: Arguments, named: Named) -> Value | Unfused:
    """Return the node of a call that kernels can compute, or Unfused where they cannot.

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
    if kinds - {"float32", "bool"}:
        return Unfused()
    if kinds == {"bool"} and (name in UNARY or name in BINARY or name in _POINTWISE or name in _ROWS):
        raise UnsuitableError(f"expected numbers in {name}, got truth values")
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
    if any(isinstance(one, Node) and one.dtype != "float32" for one in args[1:]) or _whole(args[1:]):
        return Unfused()
    return pointwise(SPECIAL["where"], *args)


def _whole(values: Arguments) -> bool:
    return all(isinstance(one, int) for one in values)


def _only(args: Arguments, named: Named, most: int, *names: str) -> None:
    """Raise an error where a call has more than `most` arguments by position, or others by name."""
    if len(args) > most or set(named) - set(names):
        raise UnsuitableError(f"expected {most} arguments and {names} by name, got {len(args)} and {sorted(named)}")


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
        raise UnsuitableError("expected a number as softshrink's edge")
    return pointwise(SPECIAL["softshrink"], args[0], -edge, edge)


def _pow(args: Arguments, named: Named) -> Value | Unfused:
    if args[1] == 2:
        return pointwise(UNARY["square"], args[0])
    return pointwise(UNARY["sqrt"], args[0]) if args[1] == 0.5 else Unfused()


def _lerp(args: Arguments, named: Named) -> Node:
    _only(args, named, 3)
    if len(args) < 3:
        raise UnsuitableError("expected lerp with a weight")
    return pointwise(SPECIAL["lerp"], *args)


def _reduced_by(args: Arguments, named: Named) -> bool:
    """Whether a loss keeps its elements, and nothing else is asked of it than its edge."""
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


def _cross_entropy_of_two(args: Arguments, named: Named) -> Value | Unfused:
    if not _reduced_by(args, named):
        return Unfused()
    return pointwise(SPECIAL["binary_cross_entropy_with_logits"], *args)


_POINTWISE: dict[str, Callable[[Arguments, Named], Value | Unfused]] = {
    "gelu": _gelu,
    "leaky_relu": _leaky,
    "clamp": _clamp,
    "softshrink": _softshrink,
    "pow": _pow,
    "lerp": _lerp,
    "huber_loss": _huber,
    "smooth_l1_loss": _smooth_l1,
    "binary_cross_entropy_with_logits": _cross_entropy_of_two,
}

_ROWS: dict[str, str] = {
    "sum": "dim",
    "mean": "dim",
    "amax": "dim",
    "amin": "dim",
    "max": "dim",
    "min": "dim",
    "var": "dim",
    "std": "dim",
    "softmax": "dim",
    "softmin": "dim",
    "log_softmax": "dim",
    "logsumexp": "dim",
    "cumsum": "dim",
    "cosine_similarity": "dim",
    "vector_norm": "dim",
}


def _rows(name: str, node: Node, args: Arguments, named: Named) -> Value | Unfused:
    if name == "vector_norm" and (len(args) > 1 or set(named) - {"dim", "keepdim"}):
        return Unfused()  # another order than 2
    given = args[2:] if name == "cosine_similarity" else args[1:]
    if given and isinstance(given[0], Node):
        return Unfused()
    asked = reduction(name, given, named)
    where = asked.dim
    if where is None or asked.dtype != "float32":
        return Unfused()
    axes = {place % len(node.dims) for place in shapes.ints(where)}
    trailing = len(axes)
    if axes != set(range(len(node.dims) - trailing, len(node.dims))) or trailing == len(node.dims):
        return Unfused()
    if name == "cosine_similarity":
        return _cosine(args, trailing, asked.eps)
    return _lowered(name, node, trailing, keepdim=asked.keepdim, correction=asked.correction)


@dataclass(frozen=True)
class Reduction:
    """What a call asks of a reduction."""

    dim: Value
    """Axes; None for all."""
    keepdim: bool
    """Whether they stay, with size 1."""
    correction: float
    """Of a variance: what is taken from the number of elements."""
    eps: float
    """Of an angle: the least length."""
    dtype: str
    """Of the sums."""


_PLACES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("softmax", "softmin", "log_softmax", "cumsum"), ("dim",)),
    **dict.fromkeys(("var", "std"), ("dim", "unbiased", "keepdim")),
    "cosine_similarity": ("dim", "eps"),
    "vector_norm": (),
}
"""Arguments by position behind the tensors, where they are not `dim, keepdim`."""


def reduction(name: str, given: Arguments, named: Named) -> Reduction:
    """Return what a call asks of a reduction.

    Args:
        name: Last part of the function's name.
        given: Arguments by position behind the tensors.
        named: Arguments by name.

    Raises:
        UnsuitableError: It asks something that is not known.
    """
    places = _PLACES.get(name, ("dim", "keepdim"))
    also = {"correction", "unbiased", "keepdim"} if name in ("var", "std") else {"dim", "keepdim", "dtype"}
    if len(given) > len(places) or set(named) - {*places, *also}:
        raise UnsuitableError(f"expected {places} by position in {name}, got {given} and {sorted(named)} by name")
    asked: dict[str, Value] = {**dict(zip(places, given, strict=False)), **named}
    correction = asked.get("correction", 1)
    if asked.get("unbiased") is not None:
        correction = int(bool(asked["unbiased"]))
    eps, keepdim = asked.get("eps", 1e-8), asked.get("keepdim", False)
    if not isinstance(correction, int | float) or not isinstance(eps, int | float) or not isinstance(keepdim, bool):
        raise UnsuitableError(f"expected numbers that are known in {name}")
    dtype = dtypes.asked(asked["dtype"]) if asked.get("dtype") is not None else "float32"
    return Reduction(asked.get("dim"), keepdim, correction, eps, dtype)


def _lowered(name: str, x: Node, k: int, *, keepdim: bool, correction: float) -> Value:
    """Write a row operator in reductions and pointwise operators. `k`: how many trailing axes it goes over."""
    length = _length(x, k)
    match name:
        case "sum":
            return reduce("sum", x, k, keepdim=keepdim)
        case "mean":
            return pointwise("a * b", reduce("sum", x, k, keepdim=keepdim), 1.0 / length)
        case "amax" | "amin":
            return reduce("max" if name == "amax" else "min", x, k, keepdim=keepdim)
        case "max" | "min":
            return reduce("max" if name == "max" else "min", x, k, keepdim=keepdim), None
        case "var" | "std":
            middle = pointwise("a * b", reduce("sum", x, k), 1.0 / length)
            total = reduce("sum", pointwise("(a - b) * (a - b)", x, middle), k, keepdim=keepdim)
            if length <= correction:
                raise UnsuitableError(f"expected rows of more than {correction} elements in {name}")
            spread = pointwise("a * b", total, 1.0 / (length - correction))
            return spread if name == "var" else pointwise("sqrt(a)", spread)
        case "vector_norm":
            return pointwise("sqrt(a)", reduce("sum", pointwise("a * a", x), k, keepdim=keepdim))
        case "cumsum":
            return Node("scan", x.dims, operands=(x,), how="sum", trailing=1)
        case "softmin":
            return _lowered("softmax", pointwise("-a", x), k, keepdim=keepdim, correction=correction)
        case _:
            return _exponential(name, x, k, keepdim=keepdim)


def _exponential(name: str, x: Node, k: int, *, keepdim: bool) -> Node:
    if name == "logsumexp":
        top, again = reduce("max", x, k), reduce("max", x, k, keepdim=keepdim)
        total = reduce("sum", pointwise("exp(a - b)", x, top), k, keepdim=keepdim)
        return pointwise("a + log(b)", again, total)
    shifted = pointwise("a - b", x, reduce("max", x, k))
    powers = pointwise("exp(a)", shifted)
    total = reduce("sum", powers, k)
    return pointwise("a / b", powers, total) if name == "softmax" else pointwise("a - log(b)", shifted, total)


def _cosine(args: Arguments, k: int, eps: float) -> Node:
    left, right = args[0], args[1]
    assert isinstance(left, Node)
    if not isinstance(right, Node) or left.dims != right.dims:
        raise UnsuitableError("expected two tensors of one shape in cosine_similarity")
    dot = reduce("sum", pointwise("a * b", left, right), k, keepdim=False)
    ones = [reduce("sum", pointwise("a * a", one), k, keepdim=False) for one in (left, right)]
    lengths = [pointwise("max(sqrt(a), b)", one, eps) for one in ones]
    return pointwise("a / (b * c)", dot, *lengths)


def layer_norm(layer: Layer, x: Node, weight: Node | None, bias: Node | None) -> Node:
    """Return what `nn.LayerNorm` computes."""
    k = len(shapes.ints(layer.args[0]))
    scale = 1.0 / _length(x, k)
    centred = pointwise("a - b", x, pointwise("a * b", reduce("sum", x, k), scale))
    spread = pointwise("a * b", reduce("sum", pointwise("a * a", centred), k), scale)
    result = pointwise("a * rsqrt(b + c)", centred, spread, layer.argument(1, "eps", 1e-5))
    if weight is not None:
        result = pointwise("a * b", result, weight)
    return result if bias is None else pointwise("a + b", result, bias)


def reduce(how: How, x: Node, k: int, *, keepdim: bool = True) -> Node:
    """Return the reduction of the last `k` axes."""
    axes = range(len(x.dims) - k, len(x.dims))
    dims = shapes.reduced(x.dims, axes, keepdim=keepdim)
    return Node("reduce", dims, operands=(x,), how=how, trailing=k, keepdim=keepdim)


def _length(x: Node, k: int) -> int:
    size = 1
    for one in x.dims[-k:]:
        size *= one
    return size
