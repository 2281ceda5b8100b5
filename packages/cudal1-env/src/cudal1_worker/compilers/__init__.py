"""Compilers of extensions: torch's `load_inline` and `load` call them through the scripts of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

FOLDER = os.path.dirname(os.path.abspath(__file__))
"""Where the scripts are; visible in the sandbox, because Python's packages are."""


COMPILED = "compiled"
"""Folder, in the build folder, of what a compiler made of a text."""
UNSETTLED = "unsettled"
"""File in there: a compiler failed for a reason that is not the text's."""


def settings(environment: Mapping[str, str], build: str) -> dict[str, str]:
    """Return the variables that let torch call the scripts of this folder instead of the compilers."""
    scripts = {name: os.path.join(FOLDER, name) for name in ("g++", "nvcc")}
    if not all(os.access(path, os.X_OK) for path in scripts.values()):  # an installer that drops permissions
        return {}
    return {
        "CXX": scripts["g++"],
        "PYTORCH_NVCC": scripts["nvcc"],
        "CUDAL1_PYTHON": sys.executable,
        "CUDAL1_CXX": environment.get("CXX", "c++"),
        "CUDAL1_COMPILED": os.path.join(build, COMPILED),
        "TORCH_NO_COMPILER_WRAPPER": "1",  # no ccache or sccache, which programs would share
    }
