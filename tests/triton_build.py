"""Builds the Triton kernels of programs for sm_90, which needs no GPU. A process of its own: another test asks for
Triton's interpreter.

Reads paths of programs from the command line; prints one JSON object: how many kernels there were, and what the
compiler said of those that it refused.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path

import triton
from template_programs import imported
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

_CALL = re.compile(r"(\w+)\[\((\d+),\)\]\((.*)\)$", re.MULTILINE)


def main() -> None:
    said: dict[str, str] = {}
    kernels = 0
    for name in sys.argv[1:]:
        text = Path(name).read_text()
        module = imported(text, Path(name).parent)
        said[name] = ""
        for kernel, _, arguments in _CALL.findall(text):
            function = getattr(module, kernel)
            kernels += 1
            assert isinstance(function, JITFunction)
            body = inspect.getsource(function.fn)
            given = dict(re.findall(r"(ROWS|BLOCK|num_warps|num_stages)=(\d+)", arguments))
            constants = {(place,): int(given[one]) for place, one in enumerate(function.arg_names) if one in given}
            signature = {one: "constexpr" if one in given else pointer(body, one) for one in function.arg_names}
            source = ASTSource(function, signature, constants)
            options = {one: int(given[one]) for one in ("num_warps", "num_stages")}
            try:
                triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
            except (triton.CompilationError, RuntimeError, ValueError, AssertionError) as error:
                said[name] += f"{kernel}: {type(error).__name__}: {str(error)[-600:]}\n"
    print(json.dumps({"kernels": kernels, "said": {name: text for name, text in said.items() if text}}))


def pointer(text: str, name: str) -> str:
    """Return the type of a parameter, by how a kernel reads it."""
    read = re.search(rf"tl\.load\({name} \+ .*other=(0|0\.0)\)(\.to)?", text)
    if read is None or read[2] is None:
        return "*fp32"
    return "*i1" if read[1] == "0" else "*fp16"


main()
