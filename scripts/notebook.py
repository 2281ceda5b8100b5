"""Execute a notebook in this process and write its printed output into it, without Jupyter.

uv run scripts/notebook.py docs/notebooks/first_reward.ipynb
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a notebook whose code cells have the outputs of a new run.

    Only printed output is kept. An exception in a cell ends the run.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells: list[dict[str, Any]] = []
    for one in notebook["cells"]:
        cell = dict(one)
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), "<cell>", "exec"), names)
            text = printed.getvalue().splitlines(keepends=True)
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
            cell["execution_count"] = 1 + sum(before["cell_type"] == "code" for before in cells)
        cells.append(cell)
    return {**notebook, "cells": cells}


def main() -> None:
    """Execute the notebook named on the command line, and write it."""
    path = Path(sys.argv[1])
    path.write_text(json.dumps(executed(json.loads(path.read_text())), indent=1) + "\n")


if __name__ == "__main__":
    main()
