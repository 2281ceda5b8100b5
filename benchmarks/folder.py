"""Judge an external folder of programs: `python benchmarks/folder.py FOLDER OUT.jsonl [--repeats 5]`.

FOLDER holds `tasks/TASK.py` in KernelBench's form, and programs `attacks/TASK__NAME.py` and `honest/TASK__NAME.py`. One
JSON line for the machine and one for each verdict; an honest program also gets the ratio of a plain loop
(plain_loop.py). The same command resumes an interrupted run. At the end it prints rewarded attacks, and honest programs
that were not CORRECT or, with calls of at least 50 us, deviate from their plain loop by more than 5 %.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from cudal1_data import load_task
from cudal1_env.errors import TaskError
from cudal1_env.judge import Judge, JudgeSettings
from parts import machine_line, results
from plain_loop import plain_ratio

_REWARDED = 1.05
_AWAY = 0.05
_LONG_MS = 0.05


def main() -> None:
    """Judge, record, and print unexpected verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", choices=("training", "report"), default="training")
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of names; by default every program")
    options = parser.parse_args()
    file = results(options.out)
    done = {(line["repeat"], line["program"], line["precision"]) for line in file.lines if line["kind"] == "verdict"}
    paths = sorted([*options.folder.glob("attacks/*.py"), *options.folder.glob("honest/*.py")])
    paths = [path for path in paths if path.stem.startswith(tuple(options.only))]
    if not file.lines:
        file.add(machine_line())
    with Judge(JudgeSettings(device=options.device)) as judge:
        for repeat in range(options.repeats):
            for path in paths:
                name = f"{path.parent.name}/{path.stem}"
                if (repeat, name, options.precision) not in done:
                    line = {"kind": "verdict", "repeat": repeat, "program": name, "precision": options.precision}
                    said = file.add(line | verdict(judge, path, options, first=repeat == 0))
                    print({k: v for k, v in said.items() if k not in ("kind", "precision")}, file=sys.stderr)
    for line in file.lines:
        if line["kind"] == "verdict" and (what := unexpected(line)):
            print(f"{line['repeat']} {line['program']}: {what}")


def verdict(judge: Judge, path: Path, options: argparse.Namespace, *, first: bool) -> dict[str, Any]:
    """Judge one program."""
    task_path = options.folder / "tasks" / f"{path.stem.split('__')[0]}.py"
    try:
        one = judge.evaluate(load_task(task_path, device=options.device), path.read_text(), precision=options.precision)
    except TaskError as error:
        return {"status": "TaskError", "message": str(error)}
    honest = path.parent.name == "honest"
    return {
        "status": one.status,
        "message": one.message[:300],
        "speedup": one.speedup and one.speedup.model_dump(),
        "rewarded_low": one.rewarded_low,
        "too_short": one.too_short,
        "reference_ms": one.reference and one.reference.median_ms,
        "overhead_ms": one.overhead_ms,
        "constant_ms": one.constant_ms,
        "lease_s": one.seconds.lease_s,
        "total_s": one.seconds.total_s,
        "plain": plain_ratio(task_path, path, options.device) if honest and first else None,
    }


def unexpected(line: dict[str, Any]) -> str:
    """Return why a verdict is unexpected; empty if it is expected."""
    if line["program"].startswith("attacks/"):
        paid = line.get("rewarded_low") or 0.0
        return f"rewarded with {paid:.3g}" if paid > _REWARDED else ""
    if line["status"] != "CORRECT":
        return f"{line['status']}: {line['message']}"
    plain = line["plain"]
    if plain and plain["reference_ms"] >= _LONG_MS and plain["candidate_ms"] >= _LONG_MS:
        away = line["speedup"]["point"] / plain["ratio"] - 1
        return f"{100 * away:+.1f} % from a plain loop ({plain['ratio']:.3g})" if abs(away) > _AWAY else ""
    return ""


if __name__ == "__main__":
    main()
