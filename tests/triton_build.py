"""Builds the Triton kernels of programs for sm_90, without a GPU.

It runs in a separate process, because another test enables Triton's interpreter. It reads paths of pairs from the
command line: JSON files with `reference` and `source`. It prints one JSON object: the number of kernels, and the
compiler's messages for those that it refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import triton
from same_code import launches, ptx


def main() -> None:
    said: dict[str, str] = {}
    kernels = 0
    for name in sys.argv[1:]:
        pair = json.loads(Path(name).read_text())
        said[name] = ""
        for launch in launches(pair["reference"], pair["source"], Path(name).parent):
            kernels += 1
            try:
                ptx(launch)
            except (triton.CompilationError, RuntimeError, ValueError, AssertionError) as error:
                said[name] += f"{type(error).__name__}: {str(error)[-600:]}\n"
    print(json.dumps({"kernels": kernels, "said": {name: text for name, text in said.items() if text}}))


main()
