"""Builds the kernels that Triton variants launch for sm_90, without a GPU. A process of its own: launches are caught.

Reads paths from the command line, each the beginning of a reference's and of a variant's file name; prints one JSON
object: how many kernels each variant launched. What Triton refuses ends the process with its error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from check_starter import namespace
from template_programs import imported
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.int64: "*i64", torch.int32: "*i32", torch.bool: "*i1"}
OPTIONS = ("num_warps", "num_stages")
launches = 0


def caught(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **more: Any) -> None:
    """Stand for a launch: build the kernel as Triton would for these arguments."""
    global launches
    launches += 1
    options = {name: more.pop(name) for name in OPTIONS if name in more}
    values = {**dict(zip(self.arg_names, args, strict=False)), **more}
    sizes: tuple[int, ...] = grid(values) if callable(grid) else grid  # pyright: ignore[reportAssignmentType]
    if any(size > 65535 for size in sizes[1:]):
        raise SystemExit(f"{self.__name__}: expected a grid of up to 65535 in its last two directions, got {sizes}")
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


def main() -> None:
    global launches
    JITFunction.run = caught  # pyright: ignore[reportAttributeAccessIssue]
    built: dict[str, int] = {}
    for path in sys.argv[1:]:
        launches = 0
        reference = namespace(Path(f"{path}_reference.py").read_text(), path)
        program = imported(Path(f"{path}_variant.py").read_text(), Path(path).parent)
        with torch.device("meta"), torch.no_grad():
            program.ModelNew(*reference["get_init_inputs"]())(*reference["get_inputs"]())
        built[path] = launches
    print(json.dumps(built))


main()
