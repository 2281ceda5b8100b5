"""Runs Triton variants in Triton's interpreter, on the CPU.

It runs in a separate process, because the interpreter must be enabled before Triton is imported. It reads task ids from
the command line and prints one JSON object: the largest error by task, over the scale of the answer. For files that end
in `_own.py` it is the error of a product or of attention over the reference error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import types
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
import triton.language.extra as extra
from cudal1_data import load_task
from cudal1_data.kernelgen.codegen.attention import Rows, attention_choices, attention_program
from cudal1_data.kernelgen.codegen.matmuls import has_product
from cudal1_data.kernelgen.codegen.products import Tiles, product_program
from cudal1_data.kernelgen.codegen.programs import Choice, triton_program
from cudal1_data.kernelgen.codegen.windows import has_window, window_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import Kernel, plan, units
from cudal1_data.kernelgen.ir import walk
from template_programs import CHAINS, PRODUCTS, error_of, error_over_own, small_task
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def by_numpy(function):
    """Replace a libdevice function, which the interpreter lacks, with NumPy's."""

    def called(x):
        data = x.handle.data
        return tl.core.tensor(TensorHandle(function(data).astype(data.dtype), x.handle.dtype), x.type)

    return called


def widened(handle: TensorHandle) -> np.ndarray:
    """Return values as numbers; the interpreter stores bfloat16 as integers."""
    if handle.dtype != tl.bfloat16:
        return handle.data
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def dot(self, a, b, total, precision, imprecise):
    """Replace the interpreter's product, which misreads the bits of bfloat16 as numbers."""
    return TensorHandle(np.matmul(widened(a), widened(b), dtype=np.float32) + total.data, total.dtype.scalar)


def cast(self, source, target, plain=InterpreterBuilder.cast_impl):
    """Replace the interpreter's conversion, which truncates to bfloat16 instead of rounding like a GPU."""
    if (source.dtype.scalar, target.scalar) != (tl.float32, tl.bfloat16):
        return plain(self, source, target)
    rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16().view(torch.int16).numpy()
    return TensorHandle(rounded.view(np.uint16), target.scalar)


InterpreterBuilder.create_dot = dot  # pyright: ignore[reportAttributeAccessIssue]
InterpreterBuilder.cast_impl = cast  # pyright: ignore[reportAttributeAccessIssue]
LIBDEVICE = types.SimpleNamespace(
    tanh=by_numpy(np.tanh), log1p=by_numpy(np.log1p), expm1=by_numpy(np.expm1), atan=by_numpy(np.arctan)
)
extra.libdevice = LIBDEVICE  # pyright: ignore[reportAttributeAccessIssue]


def main() -> None:
    torch.set_num_threads(1)
    errors = {}
    with TemporaryDirectory() as folder:
        for task_id in sys.argv[1:]:
            task = small_task(task_id)
            reference = read(task.source)
            if task_id.endswith("_own.py"):
                steps = plan(reference.roots)
                if has_window(reference, steps):
                    program = window_program(reference, steps, Tiles(32, 32, 32, warps=4, stages=2))
                elif has_product(reference, steps):
                    program = product_program(reference, steps, Tiles(32, 32, 32, warps=4, stages=2))
                else:
                    program = attention_program(reference, steps, Rows(rows=16, keys=32, warps=4))
                errors[task_id] = error_over_own(task, program, Path(folder))
                continue
            if units(plan(reference.roots)):
                program = triton_program(reference, plan(reference.roots), Choice(rows=2, block=256))
                errors[task_id] = error_of(task, program, Path(folder))
            with contextlib.suppress(UnsuitableError):
                choice = Choice(rows=2, block=16, looped=1)
                program = triton_program(reference, plan(reference.roots), choice)
                errors[f"{task_id}, in parts"] = error_of(task, program, Path(folder))
            own = not task_id.startswith(("starter/", "generated/"))
            if own and any(isinstance(one, Kernel) and one.columns for one in units(plan(reference.roots))):
                for looped in (0, 1):
                    choice = Choice(rows=16, block=16, looped=looped)
                    program = triton_program(reference, plan(reference.roots), choice)
                    errors[f"{task_id}, looped={looped}, columns"] = error_of(task, program, Path(folder))
            if task_id in PRODUCTS or (own and has_product(reference, plan(reference.roots))):
                tiles = Tiles(block_m=32, block_n=64, block_k=32, warps=4, stages=2, group=2)
                program = product_program(reference, plan(reference.roots), tiles)
                errors[f"{task_id}, product"] = error_of(task, program, Path(folder))
            if own and has_window(reference, plan(reference.roots)):
                tiles = Tiles(block_m=32, block_n=16, block_k=16, warps=2, stages=2)
                program = window_program(reference, plan(reference.roots), tiles)
                errors[f"{task_id}, window"] = error_of(task, program, Path(folder))
            placed = read(task.source, in_place=True)
            if own and any(one.kind == "input" and one.strides for one in walk(*placed.roots)):
                program = triton_program(placed, plan(placed.roots), Choice(block=1024))
                errors[f"{task_id}, in place"] = error_of(task, program, Path(folder))
            if own and attention_choices(reference, plan(reference.roots)):
                program = attention_program(reference, plan(reference.roots), Rows(rows=16, keys=32, warps=4))
                errors[f"{task_id}, attention"] = error_of(task, program, Path(folder))
            if task_id in CHAINS:
                if task_id.startswith("starter/"):  # several blocks of keys, a head size that is no power of two
                    sizes = {"BATCH": 1, "HEADS": 2, "T": 136, "D": 160}
                    task = load_task(task_id, device="cpu").at(sizes, tag=False)
                    reference = read(task.source)
                program = attention_program(reference, plan(reference.roots), Rows(rows=16, keys=32, warps=8))
                errors[f"{task_id}, attention"] = error_of(task, program, Path(folder))
    print(json.dumps(errors))


main()
