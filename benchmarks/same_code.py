"""Do programs of two versions of the templates compile to the same code, except for names?

    uv run benchmarks/same_code.py write before.jsonl      # with the old version
    uv run benchmarks/same_code.py compare before.jsonl    # with the new one; resumes if interrupted

Triton and NVRTC build for sm_90, which needs no GPU: forward runs on `meta` tensors and its launches are recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cudal1_data import Task, load_suite
from cudal1_data.hashes import digest
from cudal1_data.kernelgen.make import options, variants
from cudal1_data.techniques import Backend

SUITES = ("generated?n=160&seed=0", "starter")
SAMPLE: dict[Backend, int] = {"triton": 120, "cuda-nvrtc": 180}
POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.bool: "*i1",
    torch.int64: "*i64",
}
_KERNELS = r"(?:fused|product|attention)\d+"
NAMES = re.compile(rf"\b{_KERNELS}\w*|_ZZ\d+{_KERNELS}(?=E)|_ZZ\d+(?:row|join)_\w+?E")
NOISE = re.compile(
    r"\s*(//|\.loc|\.file|\.section|\.version|\.b8|\.b32|\.b64|\{|\}$|\.global \.align 4 \.u32 [A-Z]\w* = \d+;)"
)
"""Lines without code: comments, debugging tables, and declared sizes that are never loaded."""


def write(path: Path) -> None:
    """Sample programs by their hashes and write them."""
    lines: list[dict[str, Any]] = []
    for suite in SUITES:
        for task in load_suite(suite, device="cuda"):
            for backend in SAMPLE:
                found = [one for one in variants(task, (backend,)) if not one.template.startswith("starter:")]
                for made in sorted(found, key=lambda one: digest(task.id + repr(one.parameters)))[:2]:
                    facts = {"backend": backend, "template": made.template, "parameters": dict(made.parameters)}
                    lines.append({"task": task.id, "reference": task.source, "source": made.source, **facts})
    lines.sort(key=lambda line: digest(line["task"] + json.dumps(line["parameters"])))
    kept = [line for kind, count in SAMPLE.items() for line in [one for one in lines if one["backend"] == kind][:count]]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    print(len(kept), "programs", file=sys.stderr)


@functools.cache
def _any_task() -> Task:
    return load_suite("starter", device="cuda")[0]


def remade(line: dict[str, Any]) -> str | None:
    """Return the present templates' program for the same reference and parameters; None if they make none."""
    task = _any_task().model_copy(update={"source": line["reference"], "variants": ()})
    for option in options(task, (line["backend"],)):
        given = dict(option.parameters)
        same = option.template == line["template"] and given.get("transposed") == line["parameters"].get("transposed")
        if same and {key: given.get(key) for key in line["parameters"]} == line["parameters"]:
            made = option.render()
            return None if made is None else made.source
    return None


@contextlib.contextmanager
def recorded(found: list[tuple[Any, ...]]) -> Iterator[None]:
    """Record launches instead of running them."""
    import triton

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        found.append((self, args, named))

    def compiled(source: str, name: str) -> Any:
        return lambda grid, block, args: found.append((source, name, block))

    kept = triton.runtime.jit.JITFunction.run, torch.cuda._compile_kernel
    triton.runtime.jit.JITFunction.run, torch.cuda._compile_kernel = run, compiled
    try:
        yield
    finally:
        triton.runtime.jit.JITFunction.run, torch.cuda._compile_kernel = kept


def launches(reference: str, source: str, folder: Path) -> list[tuple[Any, ...]]:
    """Return the launches of a program's forward pass."""
    modules: list[Any] = []
    for name, text in (("reference", reference), ("program", source)):
        path = folder / f"{name}_{digest(text)[:12]}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        modules.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(modules[-1])
    given, made = modules
    found: list[tuple[Any, ...]] = []
    with recorded(found), torch.no_grad(), torch.device("meta"):
        made.ModelNew(*given.get_init_inputs())(*given.get_inputs())
    return found


def ptx(launch: tuple[Any, ...]) -> str:
    """Return the code of one launch for sm_90, without names, comments and debugging tables."""
    if isinstance(launch[0], str):
        text = _nvrtc(launch[0])
    else:
        text = _triton(*launch)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not NOISE.match(line)]
    return NAMES.sub("kernel", "\n".join(lines))


def _nvrtc(source: str) -> str:
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
    _, made = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    (result,) = nvrtc.nvrtcCompileProgram(made, 1, [b"--gpu-architecture=sm_90"])
    if int(result):
        _, size = nvrtc.nvrtcGetProgramLogSize(made)
        log = bytearray(size)
        nvrtc.nvrtcGetProgramLog(made, log)
        raise RuntimeError(log.decode())
    _, size = nvrtc.nvrtcGetPTXSize(made)
    text = bytearray(size)
    nvrtc.nvrtcGetPTX(made, text)
    nvrtc.nvrtcDestroyProgram(made)
    return text.decode().rstrip("\0")


def _triton(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    for place, name in enumerate(function.arg_names):
        value = args[place] if place < len(args) else named[name]
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        else:
            signature[name], constants[place,] = "constexpr", value
    options = {key: value for key, value in named.items() if key in ("num_warps", "num_stages")}
    made = triton.compile(ASTSource(function, signature, constants), target=GPUTarget("cuda", 90, 32), options=options)
    return made.asm["ptx"]


def compare(path: Path, budget_s: float) -> None:
    """Compare every program; write the results next to the file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    out = path.with_suffix(".compared.jsonl")
    done = {one["place"] for one in map(json.loads, out.read_text().splitlines())} if out.exists() else set()
    end = time.monotonic() + budget_s
    with TemporaryDirectory() as folder, out.open("a") as results:
        for place, line in enumerate(lines):
            if place in done or time.monotonic() > end:
                continue
            said = _compared(line, Path(folder))
            results.write(json.dumps({"place": place, "backend": line["backend"], "task": line["task"], "said": said}))
            results.write("\n")
            results.flush()
    told = [json.loads(line) for line in out.read_text().splitlines()]
    counts = Counter((one["backend"], one["said"].partition(":")[0]) for one in told)
    print(json.dumps({f"{backend} {said}": count for (backend, said), count in sorted(counts.items())}, indent=1))


def _compared(line: dict[str, Any], folder: Path) -> str:
    again = remade(line)
    if again is None:
        return "not made"
    before, after = (launches(line["reference"], one, folder) for one in (line["source"], again))
    if len(before) != len(after):
        return f"other launches: {len(before)}, {len(after)}"
    try:
        same = [ptx(one) == ptx(other) for one, other in zip(before, after, strict=True)]
    except (RuntimeError, ValueError, AssertionError) as error:  # from the compilers
        return f"error: {type(error).__name__} {str(error)[:300]}"
    return "same" if all(same) else f"differs: {same.count(False)} of {len(same)}"


def main() -> None:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("write", "compare"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--budget-s", type=float, default=540.0)
    given = parser.parse_args()
    write(given.path) if given.command == "write" else compare(given.path, given.budget_s)


if __name__ == "__main__":
    main()
