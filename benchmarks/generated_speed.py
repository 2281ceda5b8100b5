"""How fast are tasks generated? `python benchmarks/generated_speed.py OUT.jsonl [--tasks 3000]`.

Tasks of all families, forward and backward, in one process on one core, each family by itself. One JSON line for the
machine, one for each family, then one with the summary, which is also printed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from cudal1_data.generator import FAMILIES, make_task, tag_of
from parts import machine_line, write


def main() -> None:
    """Measure, record, summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    machine = machine_line()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    each = max(1, options.tasks // (2 * len(FAMILIES)))
    count, total_s, structures = 0, 0.0, set[str]()
    with options.out.open("w") as file:
        write(file, machine)
        for family in FAMILIES:
            for backward in (False, True):
                began = time.perf_counter()
                tasks = [make_task(family, options.seed, number, backward=backward) for number in range(each)]
                seconds = time.perf_counter() - began
                found = {tag_of(task, "structure") for task in tasks}
                line = {
                    "kind": "family",
                    "family": family,
                    "backward": backward,
                    "tasks": each,
                    "seconds": seconds,
                    "tasks_per_s": each / seconds,
                    "structures": len(found),
                    "levels": [sum(task.level == level for task in tasks) for level in (1, 2, 3)],
                    "splits": {
                        split: sum(t.split == split for t in tasks) for split in ("train", "validation", "test")
                    },
                }
                write(file, line)
                count, total_s = count + each, total_s + seconds
                structures |= found
        summary = {
            "kind": "summary",
            "tasks": count,
            "seconds": total_s,
            "tasks_per_s": count / total_s,
            "structures": len(structures),
        }
        write(file, summary)
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
