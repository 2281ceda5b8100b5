"""Runs the starter suite's Triton variants in Triton's interpreter, in a separate process like triton_child.py.

Prints one JSON object: the errors by task and variant, empty for none.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["TRITON_INTERPRET"] = "1"

import check_starter
import torch
from starter_programs import check, small_tasks, variants_for_gpu


def main() -> None:
    torch.set_num_threads(1)
    said: dict[str, str] = {}
    with TemporaryDirectory() as folder:
        for name, variant in variants_for_gpu(("triton",)):
            said[f"{name}/{variant.name}"] = ""
            for task in small_tasks(name)[1:]:  # odd sizes, also with several passes
                try:
                    check(task, variant, Path(folder))
                except check_starter.CheckError as error:
                    said[f"{name}/{variant.name}"] += f"{error}\n"
    print(json.dumps(said))


main()
