"""Compilers of extensions: torch's `load_inline` and `load` call them through the scripts of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

FOLDER = os.path.dirname(os.path.abspath(__file__))
"""Folder of the scripts; visible in the sandbox like all of Python's packages."""


COMPILED = "compiled"
"""Subfolder of the build folder for compiled objects and messages."""
UNSETTLED = "unsettled"
"""File in that subfolder: a compiler failed for a reason other than its source."""
HEADER = "extension.h"
"""File that includes what torch includes in an extension with bindings; its precompiled form is beside it."""


def settings(environment: Mapping[str, str], build: str) -> dict[str, str]:
    """Return the environment variables that make torch call this folder's scripts instead of the compilers."""
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
