"""CPU seconds of the compilers of an extension: `python benchmarks/headers.py OUT.jsonl --torch INCLUDE --cuda HOME`.

No GPU is needed. INCLUDE is the include folder of a torch for CUDA, HOME a CUDA toolkit (packages `nvidia-cuda-nvcc`,
`nvidia-nvvm`, `nvidia-cuda-crt`, `nvidia-cuda-runtime` and `nvidia-cuda-cccl`). The extension is that of `builds.py`.
The ways take turns: torch's headers ("stock"), the judge's light ones ("light") and, for g++, also the precompiled ones
("precompiled"). One JSON line for each compilation, then the least seconds (user and system) of each step and way.

With `--table h100.jsonl`, then each published CUDA text: does nvcc's front end for the host accept it with light
headers and, where not, with torch's?
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import resource
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from builds import CUDA
from cudal1_worker import compilers
from cudal1_worker.compilers import compile as compiling
from cudal1_worker.compilers import side_by_side
from parts import fresh, machine_line

MAIN = """#include <torch/extension.h>
torch::Tensor twice(torch::Tensor x);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
m.def("twice", torch::wrap_pybind_function(twice), "twice");
}
"""
HEAD = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
DEFINES = ("-DTORCH_EXTENSION_NAME=twice", "-DTORCH_API_INCLUDE_EXTENSION_H")
NO_HALF = tuple(
    f"-D__CUDA_NO_{name}__"
    for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS")
)
DEVICE = ("--expt-relaxed-constexpr", "-gencode=arch=compute_90,code=sm_90", "--compiler-options", "-fPIC")
STANDARD = "-std=c++17"


class Failed(RuntimeError):
    """A compiler's messages."""


def seconds(command: list[str], environment: dict[str, str] | None = None) -> float:
    """Run a command; return its user and system seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise Failed(done.stderr or done.stdout)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def nvcc_steps(nvcc: str, flags: list[str], call: compiling.Call, *, host_only: bool = False) -> dict[str, float]:
    """Run nvcc's steps one by one; return the seconds of each."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TMPDIR": folder}
        asked = [nvcc, "--dryrun", *flags, *call.arguments]
        dry = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
        known = side_by_side.steps(dry.stderr)
        assert known is not None, "nvcc's steps are unknown"
        Path(known.module).write_text("module")
        environment |= known.variables
        names = ("preprocess for the host", "front end for the host")
        parts = list(zip(names, known.host, strict=True))
        if not host_only:
            device = "\n".join(known.device)
            parts += [("all for the device", device), ("g++ of the host's part", known.last)]
        return {name: seconds(["/bin/sh", "-ec", line], environment) for name, line in parts}


def light(call: compiling.Call, folder: Path) -> list[str]:
    """Return the flags for light headers."""
    flags = compiling.light_flags(call, str(folder))
    assert flags is not None, "the text gets torch's headers at once"
    return flags


def parsed(compiler: str, source: Path, flags: list[str]) -> compiling.Call:
    """Return the compilation that torch would request."""
    call = compiling.parse([compiler], [*flags, "-c", str(source), "-o", f"{source}.o"])
    assert call is not None
    return call


def texts(table: Path) -> Iterator[str]:
    """Yield each CUDA text that a program of the table passes to `load_inline`, once."""
    seen = set[str]()
    programs = [value for line in table.open() for value in json.loads(line).values() if isinstance(value, str)]
    for program in programs:
        if "load_inline" not in program:
            continue
        with contextlib.suppress(SyntaxError):
            nodes = list(ast.walk(ast.parse(program)))
            known = {
                target.id: node.value.value
                for node in nodes
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            calls = [node for node in nodes if isinstance(node, ast.Call)]
            for given in (word.value for call in calls for word in call.keywords if word.arg == "cuda_sources"):
                for one in given.elts if isinstance(given, ast.List) else [given]:
                    text = known.get(one.id) if isinstance(one, ast.Name) else getattr(one, "value", None)
                    if isinstance(text, str) and text not in seen:
                        seen.add(text)
                        yield text


def main() -> None:
    """Measure; see the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--torch", type=Path, required=True)
    parser.add_argument("--cuda", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    file = fresh(options.out)
    file.add(machine_line())
    os.environ["CUDA_HOME"] = str(options.cuda)
    api = options.torch / "torch" / "csrc" / "api" / "include"
    folders = [options.torch, api, options.cuda / "include", Path(sysconfig.get_path("include"))]
    common = [*DEFINES, *(part for folder in folders for part in ("-isystem", str(folder))), STANDARD]
    nvcc = str(options.cuda / "bin" / "nvcc")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "main.cpp").write_text(MAIN)
        (folder / "cuda.cu").write_text(HEAD + CUDA.format(factor="2.0f"))
        bindings = parsed("g++", folder / "main.cpp", [*common, "-fPIC"])
        kernel = parsed(nvcc, folder / "cuda.cu", [*common, *NO_HALF, *DEVICE])
        for number in ("made", "light g++", "light nvcc"):
            (folder / number).mkdir()
        compiling.precompile(bindings, f"{folder}/made")
        flags = {"light": light(bindings, folder / "light g++")}
        os.environ["CUDAL1_HEADERS"] = f"{folder}/made"
        flags["precompiled"] = light(bindings, folder / "none")
        nvcc_flags = light(kernel, folder / "light nvcc")
        best: dict[str, dict[str, float]] = {}
        for repeat in range(options.repeats):
            for way in ("stock", "light", "precompiled"):
                steps = {"g++ of the bindings": seconds(["g++", *flags.get(way, []), *bindings.arguments])}
                if way != "precompiled":
                    steps |= nvcc_steps(nvcc, nvcc_flags if way == "light" else [], kernel)
                file.add({"kind": "compiled", "way": way, "repeat": repeat, "seconds": steps})
                for step, one in steps.items():
                    best.setdefault(way, {})[step] = min(one, best.get(way, {}).get(step, one))
        size = (folder / "made" / f"{compilers.HEADER}.gch").stat().st_size
        summary = {"kind": "least", "seconds": best, "precompiled_bytes": size}
        file.add(summary)
        print(json.dumps(summary))
        for number, text in enumerate(texts(options.table) if options.table else ()):
            source = folder / f"{number}.cu"
            source.write_text(HEAD + text)
            call = parsed(nvcc, source, [*common, *NO_HALF, *DEVICE])
            (folder / str(number)).mkdir()
            found: dict[str, bool | None] = {"light": None, "stock": None}
            for way, extra in (("light", compiling.light_flags(call, f"{folder}/{number}")), ("stock", [])):
                if extra is not None and not found["light"]:
                    try:
                        nvcc_steps(nvcc, extra, call, host_only=True)
                        found[way] = True
                    except Failed:
                        found[way] = False
            file.add({"kind": "text", "number": number, **found})


if __name__ == "__main__":
    main()
