"""Tracing of a reference program to the operators that torch dispatches, on tensors without values.

This module imports torch and executes the program: only `child.py` imports it, in a separate process. Operators are
decomposed as far as torch's table goes, so that a module and its functional form, or a library call and its formula,
give the same operators.
"""

# torch's private modules have no types.
# pyright: basic

from __future__ import annotations

import ast
import random
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from cudal1_data.tracing.constants import Kind, constants
from cudal1_data.tracing.raw import RawGraph, RawNode

TORCH = str(torch.__version__)

KEPT_WHOLE = (
    "max_pool",
    "avg_pool",
    "upsample",
    "grid_sampler",
    "embedding",
    "im2col",
    "col2im",
    "unfold",
    "cumsum",
    "cumprod",
    "_pad",
    "scatter",
    "index_put",
    "index_add",
    "index_copy",
    "index_fill",
)
"""Operators that stay one node, because their decompositions are index arithmetic or write into tensors."""

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")

_library = torch.library.Library("cudal1_data", "DEF")
_library.define("recurrent(str kind, Tensor data, Tensor[] states, Tensor[] weights, bool both_ways) -> Tensor[]")


@torch.library.register_fake("cudal1_data::recurrent", lib=_library)
def _recurrent_shapes(kind: str, data: Any, states: list[Any], weights: list[Any], both_ways: bool) -> list[Any]:
    width = states[0].shape[-1] * (2 if both_ways else 1)
    return [data.new_empty((*data.shape[:-1], width)), *(one.new_empty(one.shape) for one in states)]


class _WholeRecurrences(TorchFunctionMode):
    """A mode that keeps torch's recurrent layers one operator: an unrolled graph would depend on the input length."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in RECURRENT or not isinstance(args[3], bool):  # packed sequences have other arguments
            return func(*args, **(kwargs or {}))
        data, states, weights, both_ways = args[0], args[1], args[2], args[7]
        states = list(states) if isinstance(states, list | tuple) else [states]
        return tuple(torch.ops.cudal1_data.recurrent(name, data, states, list(weights), both_ways))


def trace(source: str, name: str) -> RawGraph:
    """Execute a reference program on tensors without values and return the operators of one call.

    Args:
        source: Program text. It is executed: pass only trusted programs.
        name: Its name in tracebacks.

    Raises:
        Exception: The program's exceptions, and torch's if it reads a tensor's values.
    """
    mode, model, inputs = without_values(source, name)
    state: dict[str, Any] = {}
    if isinstance(model, torch.nn.Module):
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        state = {name: _fake(tensor, mode) for name, tensor in named.items()}
    inputs = pytree.tree_map_only(torch.Tensor, lambda tensor: _fake(tensor, mode), inputs)

    def call(state: dict[str, Any], *values: Any) -> Any:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _WholeRecurrences():
            if isinstance(model, torch.nn.Module):
                return torch.func.functional_call(model, state, values)
            return model(*values)

    with mode:
        traced = _decomposed(call, state, inputs)
    tensors = [value for value in pytree.tree_leaves(inputs) if isinstance(value, torch.Tensor)]
    return _raw(traced, states=len(state), state_bytes=_bytes(state.values()), inputs_bytes=_bytes(tensors))


def _decomposed(call: Callable[..., Any], state: Mapping[str, Any], inputs: Iterable[Any]) -> torch.fx.GraphModule:
    """Trace a call to operators that change nothing in place."""

    def traced(function: Callable[..., Any]) -> torch.fx.GraphModule:
        return make_fx(
            torch.func.functionalize(function, remove="mutations"),
            decomposition_table=_decompositions(),
            tracing_mode="fake",
            _allow_non_fake_inputs=True,
        )(state, *inputs)

    try:
        return traced(call)
    except RuntimeError as error:
        if "functorch transform" not in str(error):
            raise
    # A reference that computes gradients: trace its operators first, then decompose them.
    return traced(make_fx(call, tracing_mode="fake", _allow_non_fake_inputs=True)(state, *inputs))


def without_values(program: str | ast.Module, name: str) -> tuple[FakeTensorMode, Any, list[Any]]:
    """Execute a program on tensors without values, which take no memory.

    Args:
        program: Its text or syntax tree. It is executed: pass only trusted programs.
        name: Its name in tracebacks.

    Returns:
        The mode of these tensors, the model and its inputs; either may have real tensors, if its program reads values
        (`linspace(...).item()`).
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        module = executed(program, name)

        def call(make: Callable[[], Any]) -> Any:
            try:
                return make()
            except (RuntimeError, NotImplementedError, ValueError, TypeError):
                with unset_fake_temporarily():
                    return make()

        return mode, call(lambda: made(module)), call(lambda: list(module.get_inputs()))


def executed(program: str | ast.Module, name: str) -> types.ModuleType:
    """Return the module of a program, executed with fixed seeds."""
    module = types.ModuleType("reference")
    torch.manual_seed(0)
    random.seed(0)
    exec(compile(program, name, "exec"), module.__dict__)
    return module


def made(module: types.ModuleType) -> Any:
    """Return a program's model, with its own arguments."""
    arguments = module.get_init_inputs()
    return module.Model(**arguments) if isinstance(arguments, dict) else module.Model(*arguments)


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if not isinstance(tensor, FakeTensor):
        return mode.from_tensor(tensor)
    if tensor.fake_mode is mode:
        return tensor
    with mode:  # from a copied module: deepcopy also copies the mode
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    found = {
        operator: rule
        for operator, rule in decomposition_table.items()
        if not any(name in str(operator) for name in KEPT_WHOLE)
    }
    # Omit the guard for fully masked rows: handwritten attention has none.
    found[torch.ops.aten._safe_softmax.default] = lambda data, dim, dtype=None: torch.softmax(data, dim, dtype)
    return found


def _raw(traced: torch.fx.GraphModule, *, states: int, state_bytes: int, inputs_bytes: int) -> RawGraph:
    """Return a traced graph as plain values, without dead code."""
    traced.graph.eliminate_dead_code()
    places: dict[torch.fx.Node, int] = {}
    nodes: list[RawNode] = []
    known = constants(traced)
    arguments = 0
    returned: list[Any] = []
    for node in traced.graph.nodes:
        if node.op == "output":
            returned = pytree.tree_leaves(node.args[0])
            continue
        places[node] = len(nodes)
        if node.op == "placeholder":
            nodes.append(_tensor_node("state" if arguments < states else "input", {}, node))
            arguments += 1
        elif node.op == "get_attr":
            nodes.append(_constant(traced, node, known.get(node)))
        elif isinstance(number := known.get(node), float):
            nodes.append(_tensor_node("constant", {"value": number}, node))
        else:
            nodes.append(_operator(node, places))
        if known.get(node) == "unit":
            nodes[-1] = nodes[-1].model_copy(update={"unit": True})
    outputs = [_plain(value, places) for value in returned]
    made = [value.meta["val"] for value in returned if isinstance(value, torch.fx.Node)]
    return RawGraph(
        nodes=tuple(nodes),
        outputs=tuple(outputs),
        inputs_bytes=inputs_bytes,
        state_bytes=state_bytes,
        outputs_bytes=_bytes(value for value in made if isinstance(value, torch.Tensor)),
    )


def _operator(node: torch.fx.Node, places: Mapping[torch.fx.Node, int]) -> RawNode:
    target: Any = node.target
    if getattr(target, "__name__", "") == "getitem":
        of, index = node.args
        return _tensor_node("getitem", {"of": _plain(of, places), "index": _plain(index, places)}, node)
    named: dict[str, Any] = {}
    for place, argument in enumerate(target._schema.arguments):
        if place < len(node.args):
            named[argument.name] = _plain(node.args[place], places)
        elif argument.name in node.kwargs:
            named[argument.name] = _plain(node.kwargs[argument.name], places)
        elif argument.has_default_value():
            named[argument.name] = _plain(argument.default_value, places)
    return _tensor_node(str(target.overloadpacket), named, node)


def _constant(traced: torch.fx.GraphModule, node: torch.fx.Node, known: Kind | None) -> RawNode:
    value = getattr(traced, str(node.target))
    shape = tuple(value.shape) if isinstance(value, torch.Tensor) else None
    dtype = str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else ""
    number = known if isinstance(known, float) else None
    return RawNode(op="constant", args={"value": number}, shape=shape, dtype=dtype)


def _tensor_node(op: str, args: dict[str, Any], node: torch.fx.Node) -> RawNode:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return RawNode(op=op, args=args)
    shape = tuple(int(size) for size in value.shape)
    return RawNode(op=op, args=args, shape=shape, dtype=str(value.dtype).removeprefix("torch."))


def _plain(value: Any, places: Mapping[torch.fx.Node, int]) -> Any:
    """Return an argument as a JSON value."""
    match value:
        case torch.fx.Node():
            return {"node": places[value]}
        case list() | tuple():
            return [_plain(item, places) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return str(value)
        case _:
            return str(value)
