"""What a program earns that keeps answers in the kernel's memory: `python benchmarks/remembered.py OUT.jsonl`.

One judge evaluates tests/exploits/h30_missing_names.py at `report` precision, then three times at `training`: a record
a line, without the programs' texts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cudal1_data import Task
from cudal1_env.judge import Judge, JudgeSettings

EXPLOITS = Path(__file__).parents[1] / "tests" / "exploits"


def main() -> None:
    """Evaluate, and write a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--exploits", type=Path, default=EXPLOITS, help="where it is (default: here)")
    options = parser.parse_args()
    source = (options.exploits / "h30_missing_names.py").read_text()
    reference = (options.exploits / "tasks" / "mean_loss.py").read_text()
    task = Task(id="file/mean_loss", source=reference, name="mean_loss", level=1, origin="file")
    with Judge(JudgeSettings(device=options.device)) as judge, options.out.open("w") as out:
        for precision in ("report", "training", "training", "training"):
            record = judge.evaluate(task, source, precision=precision)
            out.write(record.model_dump_json(exclude={"source", "task_source"}) + "\n")
            found = record.speedup
            print(precision, record.status, found and (found.low, found.point, found.high), flush=True)


if __name__ == "__main__":
    main()
