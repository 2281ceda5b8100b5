"""Assignments to parts of a tensor, `x[index] = y`, if no other name refers to it."""

from __future__ import annotations

from collections.abc import Mapping

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import shapes
from cudal1_data.kernelgen.frontend.values import Value, opaque, tensors, written
from cudal1_data.kernelgen.ir import Node, broadcast, walk

_CHANGED = "{0}  # changed in place"


def stored(name: str, index: tuple[Value, ...], value: Value, scope: Mapping[str, Value]) -> Node:
    """Return a tensor after `name[index] = value`, which PyTorch stores into a clone in place.

    Args:
        name: Name of the tensor.
        index: Integers first, then integer tensors.
        value: Stored value.
        scope: Values by name.

    Raises:
        UnsuitableError: The tensor is no clone with only this name, or index or value are not supported.
    """
    whole = scope[name]
    if not isinstance(whole, Node) or not isinstance(value, Node) or value.dtype != whole.dtype:
        raise UnsuitableError(f"{name}[...] is assigned a value other than a tensor of its dtype")
    if whole.text not in ("clone", _CHANGED) or _is_used(whole, name, scope):
        raise UnsuitableError(f"{name}[...] is assigned, and {name} is not a clone with only this name")
    if whole.text == "clone":
        whole = opaque("{0}.clone()", whole.dims, *whole.operands, dtype=whole.dtype)
    firsts = [one for one in index if isinstance(one, int)]
    places = [one for one in index if isinstance(one, Node) and one.dtype == "int64"]
    if not places or list(index) != [*firsts, *places]:
        raise UnsuitableError(f"{name}[...] is assigned at an index other than integers and integer tensors")
    inner = whole.dims[len(firsts) :]
    if broadcast(value.dims, shapes.indexed(inner, tuple(places))) != shapes.indexed(inner, tuple(places)):
        raise UnsuitableError(f"{name}[...] is assigned a tensor of another shape, {value.dims}")
    operands = [whole]
    part = f"{{0}}[{', '.join(map(str, map(int, firsts)))}]" if firsts else "{0}"
    where = written(tuple(places), operands)
    text = f"{part}.index_put_({where}, {written(value, operands)})"
    put = opaque(text, inner, *operands, dtype=whole.dtype)
    return opaque(_CHANGED, whole.dims, whole, put, dtype=whole.dtype)


def _is_used(whole: Node, name: str, scope: Mapping[str, Value]) -> bool:
    """Return whether another name refers to the tensor or to a value computed from it."""
    others = [one for key, value in scope.items() if key != name for one in tensors(value)]
    return any(one is whole for one in walk(*others))
