"""How often is a correct program rejected? `python benchmarks/honest.py OUT.jsonl [--rounds 3] [--only attention]`.

Correct variants of the starter suite at `correct` precision, each round under new secrets. One JSON line for the
machine, one for each verdict that is not CORRECT, one for each round. The same command continues after the rounds in
OUT.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from cudal1_data import load_suite, usable_variants
from cudal1_env.hardware import available_needs
from cudal1_env.judge import Judge, JudgeSettings
from parts import machine_line, results


def main() -> None:
    """Judge every variant in every round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="a part of the tasks' names")
    options = parser.parse_args()
    needs = available_needs()
    tasks = [task for task in load_suite("starter", device=options.device) if options.only in task.name]
    jobs = [
        (task, variant.source)
        for task in tasks
        for variant in usable_variants(task, options.device, needs)
        if not variant.needs
    ]
    file = results(options.out)
    done = sum(line["kind"] == "round" for line in file.lines)
    if not file.lines:
        file.add(machine_line())
    with Judge(JudgeSettings(device=options.device)) as judge:
        for number in range(done, options.rounds):
            found = judge.evaluate_many(jobs, precision="correct")
            seeds = judge.retire()
            for one in found:
                if one.status != "CORRECT":
                    seed = seeds.get(one.seed_commitment or "")
                    line = {"kind": "rejected", "round": number, "task": one.task, "seed": seed}
                    line |= {"first_set": one.first_set, "source": one.source, "message": one.message}
                    print(number, one.task, one.status, one.message, flush=True)
                    file.add(line)
            counts = Counter(str(one.status) for one in found)
            print(file.add({"kind": "round", "round": number, "statuses": dict(counts)}), flush=True)


if __name__ == "__main__":
    main()
