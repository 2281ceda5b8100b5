"""Intercepts launches of Triton programs and builds their kernels for sm_90, without a GPU."""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.int64: "*i64", torch.int32: "*i32", torch.bool: "*i1"}
OPTIONS = ("num_warps", "num_stages")


def caught(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **more: Any) -> None:
    """Replace `JITFunction.run`: build the kernel as Triton would for these arguments."""
    options = {name: more.pop(name) for name in OPTIONS if name in more}
    values = {**dict(zip(self.arg_names, args, strict=False)), **more}
    sizes: tuple[int, ...] = grid(values) if callable(grid) else grid  # pyright: ignore[reportAssignmentType]
    if any(size > 65535 for size in sizes[1:]):
        raise ValueError(f"{self.__name__}: expected a grid of up to 65535 in its last two directions, got {sizes}")
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    multiples: dict[tuple[int], list[list[Any]]] = {}
    for place, parameter in enumerate(self.params):
        value = values[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[(place,)] = "constexpr", value
            continue
        number = isinstance(value, int)
        signature[parameter.name] = "fp32" if isinstance(value, float) else "i32" if number else TYPES[value.dtype]
        if not isinstance(value, float) and (not number or value % 16 == 0):
            multiples[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(self, signature, constants, multiples)
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
