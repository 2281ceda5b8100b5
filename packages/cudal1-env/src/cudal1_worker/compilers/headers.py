"""Precompiles the light headers of extensions for g++: `python -m cudal1_worker.compilers.headers FOLDER`.

The judge runs it for itself, without any program. torch's `load_inline` chooses the flags; `compile.py` makes the
header in place of the object that torch requests. nvcc has no such option.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile

from cudal1_worker import compilers


def main(folder: str) -> int:
    """Make `extension.h` and its precompiled form in a folder; return whether that failed."""
    from torch.utils import cpp_extension

    os.environ.update(compilers.settings(os.environ, folder), CUDAL1_MAKE_HEADERS=folder)
    with tempfile.TemporaryDirectory() as build, contextlib.suppress(RuntimeError):  # no object is made
        cpp_extension.load_inline("headers", "", build_directory=build)
    return int(not os.path.exists(f"{folder}/{compilers.HEADER}.gch"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
