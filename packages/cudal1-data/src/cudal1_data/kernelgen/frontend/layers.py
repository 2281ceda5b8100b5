"""Layers of a model: supported ones are lowered to operators, others stay calls with known shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import calls, dtypes, lookups, norms, shapes
from cudal1_data.kernelgen.frontend.values import Layer, Value, opaque, pointwise
from cudal1_data.kernelgen.ir import FLOATS, Dims, Node
from cudal1_data.kernelgen.sizes import with_edges

_ACTIVATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ReLU": ("relu", ()),
    "Sigmoid": ("sigmoid", ()),
    "Tanh": ("tanh", ()),
    "SiLU": ("silu", ()),
    "Mish": ("mish", ()),
    "SELU": ("selu", ()),
    "Hardswish": ("hardswish", ()),
    "Hardsigmoid": ("hardsigmoid", ()),
    "LogSigmoid": ("logsigmoid", ()),
    "Softsign": ("softsign", ()),
    "Softplus": ("softplus", ("beta", "threshold")),
    "GELU": ("gelu", ("approximate",)),
    "ELU": ("elu", ("alpha",)),
    "LeakyReLU": ("leaky_relu", ("negative_slope",)),
    "Hardtanh": ("hardtanh", ("min_val", "max_val")),
    "Softmax": ("softmax", ("dim",)),
    "Softmin": ("softmin", ("dim",)),
    "LogSoftmax": ("log_softmax", ("dim",)),
}
"""Function in `torch.nn.functional` and names of the layer's settings in order, by class."""


def changes_operand(module: Layer) -> bool:
    """Return whether a layer changes its operand in place."""
    place = len(_ACTIVATIONS[module.kind][1]) if module.kind in _ACTIVATIONS else len(module.args)
    return bool(module.argument(place, "inplace", False))


def layer(module: Layer, args: Sequence[Value], leaves: dict[str, Node]) -> Value:
    """Return the result of a layer.

    Args:
        module: The layer.
        args: Its arguments.
        leaves: Parameters by text; new ones are added.

    Raises:
        UnsuitableError: The layer is not supported.
    """
    if module.kind in ("CrossEntropyLoss", "TripletMarginLoss"):
        return _loss(module, args)
    if len(args) != 1 or not isinstance(args[0], Node):
        raise UnsuitableError(f"{module.name}(...) is not called with one tensor; templates read layers of one")
    x = args[0]
    if module.kind == "Embedding":
        return _embedding(module, x, leaves)
    if x.dtype not in FLOATS:
        raise UnsuitableError(f"{module.name} computes floats, and is called with {x.dtype}")
    if (plain := _without_state(module, x)) is not None:
        return plain
    if module.kind.startswith("AdaptiveAvgPool"):
        size, rank = module.argument(0, "output_size"), int(module.kind[-2])
        return calls.pooled_to(x, size, f"{module.name}({{0}})", rank=rank)
    if "Pool" in module.kind:
        dims, given = _pooled(module, x)
        windows = None
        if not set(given) - {"kernel_size", "stride", "padding", "dilation"}:
            windows = calls.windows_of(x, dims, given, average=module.kind.startswith("Avg"))
        if windows is not None:
            return windows
        call = opaque(f"{module.name}({{0}})", dims, x, dtype=x.dtype)
        return calls.pool(call, given, average=module.kind.startswith("Avg"))
    if (stored := dtypes.of_layer(module.kwargs.get("dtype"))) != x.dtype:
        raise UnsuitableError(f"{module.name} is stored in {stored}, and is called with {x.dtype}")
    dims = shapes.layer_dims(module, x.dims)
    if module.kind in ("LayerNorm", "RMSNorm"):
        return _row_norm(module, x, leaves)
    if module.kind == "GroupNorm":
        (count,) = shapes.ints(module.argument(0, "num_groups"))
        affine = _setting(module, 3, "affine", True)
        weight, bias = (parameter(module, name, leaves) if affine else None for name in ("weight", "bias"))
        return norms.groups(x, count, weight, bias, eps=module.argument(2, "eps", 1e-5))
    if module.kind.startswith("InstanceNorm") and _plain_instances(module, x):
        return norms.instances(x, None, None, eps=module.argument(1, "eps", 1e-5))
    if module.kind == "Linear":
        weight = parameter(module, "weight", leaves)
        if not module.argument(2, "bias", True):
            return opaque("F.linear({0}, {1})", dims, x, weight, dtype=x.dtype)
        bias = parameter(module, "bias", leaves)
        return opaque("F.linear({0}, {1}, {2})", dims, x, weight, bias, dtype=x.dtype)
    if module.kind.startswith("Conv"):
        return _convolution(module, x, with_edges(dims, module.name.removeprefix("self.")), leaves)
    return opaque(f"{module.name}({{0}})", dims, x, dtype=x.dtype)


def _convolution(module: Layer, x: Node, dims: Dims, leaves: dict[str, Node]) -> Node:
    """Return a convolution: a call whose weights kernels can read if its edges are padded with zeros."""
    call = opaque(f"{module.name}({{0}})", dims, x, dtype=x.dtype)
    bias = module.argument(7, "bias", True)
    padded = module.argument(9 if module.kind.startswith("ConvTranspose") else 8, "padding_mode", "zeros")
    if padded != "zeros" or not isinstance(bias, bool):
        return call
    names = ("weight", "bias") if bias else ("weight",)
    operands = (x, *(parameter(module, name, leaves) for name in names))
    return replace(call, operands=operands, window=shapes.convolution_window(module))


def _without_state(module: Layer, x: Node) -> Value:
    """Return the result of a layer that is a function; None for others."""
    if module.kind == "Identity" or (module.kind == "Dropout" and module.argument(0, "p", 0.5) == 0):
        return x
    if module.kind == "Flatten":
        ends = (module.argument(0, "start_dim", 1), module.argument(1, "end_dim", -1))
        return calls.call("flatten", ".flatten", (x, *ends), {})
    if module.kind not in _ACTIVATIONS:
        return None
    name, settings = _ACTIVATIONS[module.kind]
    named = {**dict(zip(settings, module.args, strict=False)), **module.kwargs}
    named.pop("inplace", None)
    return calls.call(name, f"F.{name}", (x,), named)


def _embedding(module: Layer, index: Node, leaves: dict[str, Node]) -> Node:
    if len(module.args) > 3 or set(module.kwargs) - {"num_embeddings", "embedding_dim", "padding_idx", "dtype"}:
        raise UnsuitableError(f"{module.name} is read with its sizes, padding_idx and dtype only")
    if index.dtype != "int64":
        raise UnsuitableError(f"{module.name} looks up int64 places, and is called with {index.dtype}")
    table = parameter(module, "weight", leaves)
    text = "F.embedding({1}, {0})"
    found = lookups.rows(table, index, text)
    return found or opaque(text, (*index.dims, table.dims[1]), table, index, dtype=table.dtype)


def _setting(module: Layer, place: int, name: str, default: bool) -> bool:
    value = module.argument(place, name, default)
    if not isinstance(value, bool):
        raise UnsuitableError(
            f"{name} of {module.name} is {value!r}; templates read settings that are known without running the program"
        )
    return value


def _plain_instances(module: Layer, x: Node) -> bool:
    """Return whether an instance norm has no weights and no running statistics, and takes a batch."""
    learnt = _setting(module, 3, "affine", False) or _setting(module, 4, "track_running_stats", False)
    return not learnt and len(x.dims) == int(module.kind[-2]) + 2


def _row_norm(module: Layer, x: Node, leaves: dict[str, Node]) -> Node:
    count = len(shapes.ints(module.argument(0, "normalized_shape")))
    centred = module.kind == "LayerNorm"
    affine = _setting(module, 2, "elementwise_affine", True)
    weight = parameter(module, "weight", leaves) if affine else None
    bias = parameter(module, "bias", leaves) if affine and centred and _setting(module, 3, "bias", True) else None
    return norms.rows(x, count, weight, bias, eps=module.argument(1, "eps", 1e-5 if centred else None), centred=centred)


def parameter(module: Layer, name: str, leaves: dict[str, Node]) -> Node:
    """Return the leaf of a layer's parameter or buffer.

    Args:
        module: The layer.
        name: The parameter's name.
        leaves: Parameters by text; a new one is added.
    """
    text = f"{module.name}.{name}"
    stored = dtypes.of_layer(module.kwargs.get("dtype"))
    return leaves.setdefault(text, Node("parameter", shapes.attribute_dims(module, name), text=text, dtype=stored))


def _pooled(module: Layer, x: Node) -> tuple[tuple[int, ...], dict[str, Value]]:
    average = module.kind.startswith("Avg")
    names = ("kernel_size", "stride", "padding", *(() if average else ("dilation", "return_indices")), "ceil_mode")
    names += ("count_include_pad", "divisor_override") if average else ()
    given = {**dict(zip(names, module.args, strict=False)), **module.kwargs}
    if given.get("return_indices") or given.get("ceil_mode") or not module.kind.startswith(("Avg", "Max")):
        raise UnsuitableError(
            f"{module.name} is read as average or maximum windows without return_indices and ceil_mode only"
        )
    rank = int(module.kind[-2])
    if len(x.dims) != rank + 2:
        raise UnsuitableError(f"{module.name}(...) has an input of shape {x.dims}; templates read a batch of maps")
    given = {name: value for name, value in given.items() if name not in ("return_indices", "ceil_mode")}
    return with_edges(shapes.windows(x.dims, given), module.name.removeprefix("self.")), given


def _loss(module: Layer, args: Sequence[Value]) -> Value:
    if module.kind == "TripletMarginLoss":
        return _triplet(module, args)
    if module.args:
        raise UnsuitableError(f"{module.name} has settings by position; templates read them by name")
    return calls.call("cross_entropy", "F.cross_entropy", args, module.kwargs)


def _triplet(module: Layer, args: Sequence[Value]) -> Value:
    """Return `nn.TripletMarginLoss` with its defaults: the mean of max(|a - p| - |a - n| + margin, 0)."""
    margin, eps = module.argument(0, "margin", 1.0), module.kwargs.get("eps", 1e-6)
    if len(module.args) > 1 or set(module.kwargs) - {"margin", "eps"} or len(args) != 3:
        raise UnsuitableError(f"{module.name} is read with margin and eps, and three tensors, only")
    lengths = [
        calls.call("vector_norm", "", (pointwise("a - b + c", args[0], other, eps),), {"dim": -1}) for other in args[1:]
    ]
    loss = pointwise("max(a - b + c, 0.0)", *lengths, margin)
    return calls.call("mean", "torch.mean", (loss,), {})
