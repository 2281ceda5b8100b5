"""`torch.einsum`: its shape, and matrix products that are written as one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend import dtypes, shapes
from cudal1_data.kernelgen.frontend.values import Value, opaque
from cudal1_data.kernelgen.ir import Dims, Node

_PRODUCTS = {
    r"([a-z]+)([a-z]),\2([a-z])->\1\3": False,
    r"([a-z]+)([a-z]),([a-z])\2->\1\3": True,
    r"([a-z]+)([a-z])([a-z]),\1\3([a-z])->\1\2\4": False,
    r"([a-z]+)([a-z])([a-z]),\1([a-z])\3->\1\2\4": True,
}
"""Equations of products, with one right factor or one for each of a batch, and whether it is transposed."""


def summed(args: Sequence[Value], named: Mapping[str, Value]) -> Dims:
    """Return the result's shape of an einsum without `...`.

    Args:
        args: The equation and the tensors.
        named: None are read.

    Raises:
        UnsuitableError: The equation has no letters for each axis and for the result.
    """
    equation, tensors = args[0], [one for one in args[1:] if isinstance(one, Node)]
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        raise UnsuitableError(f"the equation {equation!r} of einsum is not read; write letters and '->'")
    inputs, _, result = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for letters, one in zip(inputs.split(","), tensors, strict=True):
        for letter, size in zip(letters, one.dims, strict=True):
            sizes[letter] = size if size != 1 else sizes.get(letter, size)
    return tuple(sizes[letter] for letter in result)


def as_product(name: str, args: Sequence[Value], named: Mapping[str, Value]) -> Node | None:
    """Return an einsum as a product of the last two axes, with a transposed right factor if need be; None for others.

    Args:
        name: Last part of the function's name.
        args: The equation and the tensors.
        named: None are read.
    """
    if name != "einsum" or len(args) != 3:
        return None
    equation, left, right = args
    if not isinstance(equation, str) or not isinstance(left, Node) or not isinstance(right, Node):
        return None
    equation = equation.replace(" ", "")
    transposed = next((one for form, one in _PRODUCTS.items() if re.fullmatch(form, equation)), None)
    inputs, _, result = equation.partition("->")
    first, _, second = inputs.partition(",")
    if transposed is None or len({*first, *result}) != len(first) + 1:  # a letter occurs twice in a tensor
        return None
    dims = summed(args, named)
    sizes = dict(zip(first + result[-1], (*left.dims, dims[-1]), strict=True))
    if any(sizes[letter] != size for letter, size in zip(second, right.dims, strict=True)):
        return None
    if transposed:
        swapped = shapes.swapped(right.dims, -2, -1)
        right = opaque("{0}.transpose(-2, -1)", swapped, right, dtype=right.dtype)
    return opaque("({0} @ {1})", dims, left, right, dtype=dtypes.common((left, right)))
