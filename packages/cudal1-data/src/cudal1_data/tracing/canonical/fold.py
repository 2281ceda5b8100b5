"""Folding of traced operators into a graph in which equal computations look equal.

Each rule translates a torch operator to the builder's few: a subtraction is an addition of a product with -1, a
division a product with a power, a variance its formula. Operators without a rule are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from cudal1_data.tracing.canonical.build import Builder, Number, Shape, Tensor, Value, along, core, label, padded
from cudal1_data.tracing.canonical.chains import joined
from cudal1_data.tracing.canonical.graph import Graph
from cudal1_data.tracing.canonical.parts import part, strided
from cudal1_data.tracing.canonical.products import multiply, transposed
from cudal1_data.tracing.raw import RawGraph, RawNode

SAME = ("prims.clone", "prims.view_of", "aten.alias", "aten.detach", "prims.device_put", "aten.lift_fresh")
MADE = ("aten.full", "aten.full_like", "aten.scalar_tensor", "prims.scalar_tensor", "aten.zeros", "aten.ones")
EMPTY = ("aten.empty", "prims.empty_strided", "prims.empty_permuted", "aten.empty_like", "aten.new_empty")
COMMUTATIVE = ("eq", "ne", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor")
DRAWS = (
    "bernoulli",
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "randint",
    "randint_like",
    "randperm",
    "normal",
    "normal_functional",
    "uniform",
    "_uniform_helper",
    "exponential",
    "multinomial",
    "native_dropout",
)
RESHAPES = ("collapse_view", "collapse", "split_dim", "squeeze", "unsqueeze", "reshape", "view")
REDUCTIONS = ("sum", "amax", "amin", "prod")
POWERS = {"rsqrt": -0.5, "sqrt": 0.5, "reciprocal": -1.0}
TURNED = {"gt": "lt", "ge": "le"}
SETTINGS_OF_THE_MACHINE = (
    "dtype",
    "device",
    "layout",
    "pin_memory",
    "memory_format",
    "generator",
    "non_blocking",
    "output_dtype",
    "keepdim",
    "ceil_mode",
    "requires_grad",
)


class Folder:
    """Translator of a trace to a builder's operators."""

    def __init__(self, raw: RawGraph) -> None:
        """Start with an empty graph."""
        self.raw = raw
        self.builder = Builder()
        self.values: list[Value | None] = []

    def graph(self) -> Graph:
        """Return the graph of the whole trace."""
        for node in self.raw.nodes:
            self.values.append(self.value(node))
        return joined(self.builder.graph([self.operand(output) for output in self.raw.outputs]))

    def operand(self, given: Any) -> Value | None:
        """Return the value of an argument."""
        if isinstance(given, dict):
            return self.values[_place(cast("Any", given))]
        if isinstance(given, bool | int | float):
            return Number(float(given))
        return None

    def operands(self, node: RawNode) -> list[Value]:
        """Return all node arguments in order, including those in lists."""
        found: list[Value] = []
        for given in node.args.values():
            for one in _several(given):
                value = self.operand(one) if isinstance(one, dict) else None
                if value is not None:
                    found.append(value)
        return found

    def value(self, node: RawNode) -> Value | None:
        """Return an operator's result; None if it has several tensors or none."""
        package, _, name = node.op.rpartition(".")
        match node.op:
            case "input" | "state":
                return self.builder.leaf(node.op, node.sizes)
            case "constant":
                return _constant(self.builder, node)
            case "getitem":
                return self.item(node)
            case _ if node.op in SAME:
                return self.values[_place(next(iter(node.args.values())))]
            case _ if node.op in MADE:
                given = node.args.get("fill_value", node.args.get("s", float(name == "ones")))
                return Number(float(given)) if isinstance(given, int | float) else self.other(node)
            case _ if node.op in EMPTY:
                return Number(None)
            case _:
                rule = RULES.get(name) or (_unary if package == "prims" and len(node.args) == 1 else None)
                return rule(self, node, name) if rule is not None else self.other(node)

    def item(self, node: RawNode) -> Value | None:
        """Return one of several result tensors of an operator."""
        of = self.raw.nodes[_place(node.args["of"])]
        index = node.args["index"]
        name = of.op.rpartition(".")[2]
        if name in ("max", "min") and "dim" in of.args:
            return _reduction(self, of, f"{'a' if index == 0 else 'arg'}{name}", node.sizes)
        return self.other(of, node.sizes, f"part {index}")

    def other(self, node: RawNode, shape: Shape | None = None, *attributes: str) -> Value | None:
        """Add an operator unchanged: its name, its flags, the dimensions that it works along."""
        shape = node.shape if shape is None else shape
        if shape is None:
            return None
        values = self.operands(node)
        first = next((value for value in values if isinstance(value, Tensor)), None)
        settings = tuple(_settings(node.args, first.full if first is not None else shape))
        identity = tuple((name, str(given)) for name, given in node.args.items() if name not in SETTINGS_OF_THE_MACHINE)
        name = node.op.rpartition(".")[2]
        return self.builder.operator(name, values, shape, *settings, *attributes, identity=(*identity, shape))


def fold(raw: RawGraph) -> Graph:
    """Return the graph of a trace, with constants folded."""
    return Folder(raw).graph()


def _settings(args: Mapping[str, Any], shape: Shape) -> list[str]:
    """Return the settings of an operator that are part of the mathematics; sizes are not."""
    found: list[str] = []
    for name, given in args.items():
        if name in SETTINGS_OF_THE_MACHINE or given is None or isinstance(given, dict):
            continue
        if isinstance(given, list) and None in given:  # which dimensions are indexed
            found.append(f"{name}={along(shape, [dim for dim, one in enumerate(_several(given)) if one])}")
        elif name in ("dim", "dims", "dimension"):
            found.append(f"{name}={along(shape, _several(given))}")
        elif isinstance(given, bool | str):
            found.append(f"{name}={given}")
        elif name == "kernel_size":
            found.append(f"window {sum(size != 1 for size in _several(given))}d")
        elif name in ("stride", "dilation", "step"):
            found.append(f"{name}={'1' if all(size == 1 for size in _several(given)) else 'more'}")
        elif isinstance(given, float):
            found.append(f"{name}={label(given)}")
    return found


def _place(ref: dict[str, int]) -> int:
    """Return the place of the node that an argument refers to."""
    return ref["node"]


def _several(given: Any) -> list[Any]:
    """Return one or several settings as a list."""
    return cast("list[Any]", given) if isinstance(given, list) else [given]


def _constant(builder: Builder, node: RawNode) -> Value:
    value = node.args.get("value")
    return Number(float(value)) if value is not None else builder.leaf("constant", node.sizes)


def _pair(folder: Folder, node: RawNode) -> tuple[Value, Value]:
    first, second = [folder.operand(given) for given in list(node.args.values())[:2]]
    assert first is not None
    assert second is not None
    return first, second


def _times(folder: Folder, value: Value, factor: float | None, shape: Shape) -> Value:
    if isinstance(value, Number):
        return Number(None if value.value is None or factor is None else value.value * factor)
    return folder.builder.pointwise("mul", [value, Number(factor)], shape, ordered=False)


def _power(folder: Folder, value: Value, exponent: float, shape: Shape) -> Value:
    if isinstance(value, Number):
        safe = value.value is not None and value.value > 0
        return Number(value.value**exponent if safe and value.value is not None else None)
    return folder.builder.pointwise("pow", [value], shape, f"{exponent:g}")


def _arithmetic(folder: Folder, node: RawNode, name: str) -> Value:
    """Return a sum or product; differences and quotients become one of them."""
    first, second = _pair(folder, node)
    shape = node.sizes
    if name == "sub":
        second = _times(folder, second, -1.0, shape)
    if name == "div":
        second = _power(folder, second, -1.0, shape)
    op = "add" if name in ("add", "sub") else "mul"
    if isinstance(first, Number) and isinstance(second, Number):
        if first.value is None or second.value is None:
            return Number(None)
        return Number(first.value + second.value if op == "add" else first.value * second.value)
    if op == "mul" and Number(0.0) in (first, second):
        return Number(0.0)
    return folder.builder.pointwise(op, [first, second], shape, ordered=False)


def _pow(folder: Folder, node: RawNode, name: str) -> Value:
    first, second = _pair(folder, node)
    shape = node.sizes
    if isinstance(second, Number) and second.value is not None:
        return _power(folder, first, second.value, shape)
    return folder.builder.pointwise("power", [first, second], shape)


def _unary(folder: Folder, node: RawNode, name: str) -> Value:
    """Return a function of one tensor."""
    shape = node.sizes
    value = folder.operand(next(iter(node.args.values())))
    if value is None or isinstance(value, Number):
        return Number(None)
    if name in POWERS:
        return _power(folder, value, POWERS[name], shape)
    if name == "neg":
        return _times(folder, value, -1.0, shape)
    builder = folder.builder
    if name == "log1p":
        return builder.pointwise("log", [builder.pointwise("add", [value, Number(1.0)], shape, ordered=False)], shape)
    if name == "expm1":
        return builder.pointwise("add", [builder.pointwise("exp", [value], shape), Number(-1.0)], shape, ordered=False)
    return builder.pointwise(name, [value], shape)


def _compare(folder: Folder, node: RawNode, name: str) -> Value:
    first, second = _pair(folder, node)
    if name in TURNED:
        name, first, second = TURNED[name], second, first
    if isinstance(first, Number) and isinstance(second, Number):
        return Number(None)
    return folder.builder.pointwise(name, [first, second], node.sizes, ordered=name not in COMMUTATIVE)


def _where(folder: Folder, node: RawNode, name: str) -> Value:
    """Return a choice; it becomes a maximum or minimum if it is one."""
    chosen = folder.operand(node.args["pred"])
    values = [folder.operand(node.args[which]) for which in ("a", "b")]
    operands = [value for value in (chosen, *values) if value is not None]
    if isinstance(chosen, Number) and chosen.value is not None:
        return values[0 if chosen.value else 1] or Number(None)
    if not any(isinstance(value, Tensor) for value in operands):
        return Number(None)
    shape = node.sizes
    if isinstance(chosen, Tensor):
        extreme = _extreme(folder, chosen.node, values[0], values[1])
        if extreme is not None:
            neutral = Number(math.inf if extreme == "minimum" else -math.inf)
            if neutral in values:
                return next(value for value in values if isinstance(value, Tensor))
            return folder.builder.pointwise(extreme, operands[1:], shape, ordered=False)
    return folder.builder.pointwise("where", operands, shape)


def _extreme(folder: Folder, predicate: int, yes: Value | None, no: Value | None) -> str | None:
    """Return `maximum` or `minimum` if `a <= b` chooses between a and b; the predicate may also test for NaN."""
    nodes = folder.builder.nodes
    node = nodes[predicate]
    if node.op == "bitwise_or":
        others = [source for source in node.sources if not _asks_for_nan(folder, source)]
        if len(others) != 1:
            return None
        node = nodes[others[0]]
    if node.op not in ("le", "lt"):
        return None
    low, high = node.edges
    numbers = iter(node.identity)
    ends = [source if source is not None else ("number", next(numbers)) for source, _ in (low, high)]
    mine = [value.node if isinstance(value, Tensor) else ("number", value.value) for value in (yes, no) if value]
    return "minimum" if mine == ends else "maximum" if mine == ends[::-1] else None


def _asks_for_nan(folder: Folder, place: int) -> bool:
    node = folder.builder.nodes[place]
    return node.op == "ne" and len(set(node.edges)) == 1


def _cast(folder: Folder, node: RawNode, name: str) -> Value | None:
    """Return a cast; changes of precision are no operation, casts to integers or truth values are."""
    value = folder.operand(node.args["a"])
    before, after = (
        ("bool" if dtype == "bool" else "float" if "float" in dtype else "int")
        for dtype in (
            folder.raw.nodes[_place(node.args["a"])].dtype,
            node.dtype,
        )
    )
    if not isinstance(value, Tensor) or after == "float" or after == before or (before, after) == ("bool", "int"):
        return value
    return folder.builder.pointwise("cast", [value], node.sizes, after)


def _repeat(folder: Folder, node: RawNode, name: str) -> Value:
    value = folder.operand(node.args["a"])
    full = node.sizes
    if not isinstance(value, Tensor):
        return value or Number(None)
    shape = [1] * len(full)
    for dim, place in enumerate(node.args["broadcast_dimensions"]):
        shape[place] = value.shape[dim]
    repeated = any(mine == 1 and seen != 1 for mine, seen in zip(value.shape, value.full, strict=True))
    if repeated and core(value.full) != core(full):
        value = folder.builder.whole(value)
        for dim, place in enumerate(node.args["broadcast_dimensions"]):
            shape[place] = value.shape[dim]
    return Tensor(value.node, tuple(shape), full)


def _reshape(folder: Folder, node: RawNode, name: str) -> Value:
    value = folder.operand(next(iter(node.args.values())))
    if not isinstance(value, Tensor):
        return value or Number(None)
    full = node.sizes
    if core(value.shape) != core(value.full) and core(full) == core(value.full):  # only ones come or go
        kept = iter(mine for mine, seen in zip(value.shape, value.full, strict=True) if seen != 1)
        return Tensor(value.node, tuple(1 if size == 1 else next(kept) for size in full), full)
    return folder.builder.reshape(value, full)


def _permute(folder: Folder, node: RawNode, name: str) -> Value:
    given: Any = node.args.get("a", node.args.get("self"))
    value = folder.operand(given)
    if not isinstance(value, Tensor):
        return value or Number(None)
    order: list[int] = node.args["permutation" if "permutation" in node.args else "dims"]
    made = _transposed_product(folder, folder.raw.nodes[_place(given)], order, node.sizes)
    return folder.builder.permute(value, order) if made is None else made


def _transposed_product(folder: Folder, of: RawNode, order: Sequence[int], full: Shape) -> Value | None:
    """Return the transpose of a matrix product; None for other permutations or operators."""
    rank = len(order)
    if list(order) != [*range(rank - 2), rank - 1, rank - 2]:
        return None
    while (of.op in SAME or of.op.rpartition(".")[2] in RESHAPES) and of.sizes[-2:] == (full[-1], full[-2]):
        of = folder.raw.nodes[_place(next(iter(of.args.values())))]
    name = of.op.rpartition(".")[2]
    if name not in ("mm", "bmm") or of.sizes[-2:] != (full[-1], full[-2]) or any(_units(folder, of)):
        return None
    return transposed(folder.builder, name, *_pair(folder, of), full)


def _sums(folder: Folder, node: RawNode, name: str) -> Value:
    return _reduction(folder, node, name, node.sizes)


def _reduction(folder: Folder, node: RawNode, name: str, shape: Shape) -> Value:
    value = folder.operand(next(iter(node.args.values())))
    if not isinstance(value, Tensor):
        return Number(None)
    given = node.args.get("dims", node.args.get("dim"))
    dims = list(range(len(value.full))) if given is None else _several(given)
    return folder.builder.reduce(name, value, dims, shape, keeps=name.startswith("arg"))


def _variance(folder: Folder, node: RawNode, name: str) -> Value:
    """Return the variance: the mean of squared distances from the mean."""
    value = folder.operand(node.args["inp"])
    if not isinstance(value, Tensor):
        return Number(None)
    builder, dims = folder.builder, node.args["dims"]
    dims = list(range(len(value.full))) if dims is None else dims
    kept = tuple(1 if dim in {one % len(value.full) for one in dims} else size for dim, size in enumerate(value.full))
    count = math.prod(value.full) / math.prod(kept)
    mean = _times(folder, builder.reduce("sum", value, dims, kept), count**-1.0, kept)
    away = _times(folder, mean, -1.0, kept)
    distance = builder.pointwise("add", [value, away], value.full, ordered=False)
    square = builder.pointwise("pow", [distance], value.full, "2")
    total = builder.reduce("sum", square, dims, node.sizes)
    freedom = count - (1.0 if node.args.get("correction") is None else float(node.args["correction"]))
    return _times(folder, total, freedom**-1.0 if freedom > 0 else None, node.sizes)


def _units(folder: Folder, node: RawNode) -> list[bool]:
    """Return for each of a product's factors whether it is a unit matrix."""
    return [folder.raw.nodes[_place(given)].unit for given in list(node.args.values())[:2]]


def _product(folder: Folder, node: RawNode, name: str) -> Value:
    """Return a matrix product; a product with a unit matrix is the other factor."""
    first, second = _pair(folder, node)
    for unit, other in zip(_units(folder, node), (second, first), strict=True):
        if unit:
            return other
    return multiply(folder.builder, name, first, second, node.sizes) or folder.other(node) or Number(None)


def _convolution(folder: Folder, node: RawNode, name: str) -> Value:
    """Return a convolution; its window and step are sizes, their number of dimensions is not."""
    args = node.args
    data, weight, bias = [folder.operand(args[which]) for which in ("input", "weight", "bias")]
    if not isinstance(data, Tensor) or not isinstance(weight, Tensor):
        return folder.other(node) or Number(None)
    groups, channels = args["groups"], data.full[1]
    made = folder.builder.operator(
        f"convolution {len(args['stride'])}d",
        [data, weight],
        node.sizes,
        "transposed" if args["transposed"] else "",
        "one group" if groups == 1 else "each channel" if groups == channels else "groups",
        f"window {sum(size != 1 for size in weight.full[2:])}d",
        *(f"{which} {'1' if all(size == 1 for size in args[which]) else 'more'}" for which in ("stride", "dilation")),
        identity=tuple(str(args[which]) for which in ("stride", "padding", "dilation", "output_padding", "groups")),
    )
    if not isinstance(bias, Tensor):
        return made
    shape = (1, bias.full[0], *[1] * len(args["stride"]))
    return folder.builder.pointwise("add", [made, Tensor(bias.node, shape, shape)], made.full, ordered=False)


def _part(folder: Folder, node: RawNode, name: str) -> Value:
    """Return one index, or a range, along a dimension: from the start, to the end, or between."""
    value = folder.operand(node.args["self"])
    if not isinstance(value, Tensor):
        return value or Number(None)
    dim = int(node.args["dim"]) % len(value.full)
    size, step = value.full[dim], int(node.args.get("step", 1))
    if name == "select":
        start = int(node.args["index"]) % size
        end = start + 1
    else:
        start = _bounded(node.args.get("start"), 0, size)
        end = _bounded(node.args.get("end"), size, size)
    return part(folder.builder, value, dim, range(start, end, step), node.sizes)


def _strided(folder: Folder, node: RawNode, name: str) -> Value | None:
    """Return the result of `chunk`, `split` or `view`: part of a contiguous tensor, or all of it reshaped."""
    value = folder.operand(node.args["self"])
    if not isinstance(value, Tensor):
        return value
    offset = int(node.args.get("storage_offset") or 0)
    made = strided(folder.builder, value, node.args["size"], node.args["stride"], offset)
    return made or folder.other(node, None, "further" if offset else "")


def _bounded(given: int | None, missing: int, size: int) -> int:
    if given is None:
        return missing
    return min(max(given + size if given < 0 else given, 0), size)


def _copy(folder: Folder, node: RawNode, name: str) -> Value | None:
    """Return the copied value: an overwritten tensor equals its source."""
    names = list(node.args)
    value = folder.operand(node.args[names[1]])
    if not isinstance(value, Tensor):
        return value
    rank = len(node.sizes)
    return Tensor(value.node, padded(value.shape, rank), node.sizes)


def _joined(folder: Folder, node: RawNode, name: str) -> Value | None:
    """Return a concatenation; of a single tensor, that tensor."""
    values = folder.operands(node)
    return values[0] if len(values) == 1 else folder.other(node)


def _random(folder: Folder, node: RawNode, name: str) -> Value:
    return folder.builder.leaf("random", node.sizes, name)


def _range(folder: Folder, node: RawNode, name: str) -> Value:
    shape = node.sizes
    return folder.builder.operator("iota", [], shape, identity=tuple(str(value) for value in node.args.values()))


RULES: dict[str, Callable[[Folder, RawNode, str], Value | None]] = {
    **dict.fromkeys(("add", "sub", "mul", "div"), _arithmetic),
    **dict.fromkeys(("lt", "le", "gt", "ge", *COMMUTATIVE), _compare),
    **dict.fromkeys(REDUCTIONS, _sums),
    **dict.fromkeys(("argmax", "argmin"), _sums),
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(("transpose", "permute"), _permute),
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), _product),
    **dict.fromkeys(("slice", "select"), _part),
    **dict.fromkeys(("copy_", "copy_to", "copy"), _copy),
    **dict.fromkeys(DRAWS, _random),
    "as_strided": _strided,
    "cat": _joined,
    "pow": _pow,
    "where": _where,
    "convert_element_type": _cast,
    "broadcast_in_dim": _repeat,
    "var": _variance,
    "convolution": _convolution,
    "iota": _range,
}
"""Rules by torch's operator name."""
