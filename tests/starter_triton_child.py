"""Runs the starter suite's Triton variants in Triton's interpreter. A process of its own, as triton_child.py.

Prints one JSON object: by task and variant what is wrong, empty where nothing is.
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
            for task in small_tasks(name)[1:]:  # the odd ones, which have several passes too
                try:
                    check(task, variant, Path(folder))
                except check_starter.CheckError as error:
                    said[f"{name}/{variant.name}"] += f"{error}\n"
    print(json.dumps(said))


main()
