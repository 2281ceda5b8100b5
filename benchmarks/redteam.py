"""Is every attack denied? `python benchmarks/redteam.py OUT.jsonl [--repeats 20] [--only h02 ...]`.

Each program of tests/exploits is judged `repeats` times: attacks must get the status of their header and no reward
above 1, honest look-alikes must be `CORRECT`. One JSON line for the machine, one for each program and repeat, then
one with the summary, which is also printed as a table. Exit status 1 when an attack was rewarded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from cudal1_env.judge import Judge

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # the programs' headers are read in one place

from exploit_programs import Outcome, Program, judge_program, programs
from parts import add_options, joined, machine_line, mine, write

_TOGETHER = 8
"""Programs that share a judge: enough that making the inputs does not matter, few enough for parts of equal length."""


def main() -> int:
    """Judge, record, summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of names; by default every program")
    add_options(parser)
    options = parser.parse_args()
    chosen = [program for program in programs() if program.name.startswith(tuple(options.only))]
    with options.out.open("w") as file:
        if options.join:
            lines = [write(file, line) for line in joined(options.join)]
        else:
            lines = [write(file, machine_line())]
            for repeat, group in mine(jobs(chosen, options.repeats), options.part):
                with Judge() as judge:  # new secrets each time
                    for program in group:
                        outcome = judge_program(judge, program)
                        lines.append(write(file, {"kind": "outcome", "repeat": repeat, **told(outcome)}))
                        if not (outcome.as_expected and outcome.denied):
                            print(f"{repeat} {outcome.program}: {outcome.statuses} {outcome.message}", file=sys.stderr)
        outcomes = [line for line in lines if line["kind"] == "outcome"]
        summary = write(file, {"kind": "summary", **summarise(outcomes)})
    print(table(outcomes))
    print(json.dumps(summary, indent=1))
    return 1 if summary["attacks_rewarded"] else 0


def jobs(chosen: list[Program], repeats: int) -> list[tuple[int, list[Program]]]:
    """A few programs of one task, which share a judge and its inputs, once for each repeat."""
    groups = [list(group) for _, group in groupby(chosen, key=lambda program: program.header["task"])]
    few = [group[start : start + _TOGETHER] for group in groups for start in range(0, len(group), _TOGETHER)]
    return [(repeat, group) for repeat in range(repeats) for group in few]


def told(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a line of the record."""
    return asdict(outcome) | {"as_expected": outcome.as_expected, "denied": outcome.denied}


def summarise(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Count what matters: attacks that paid, statuses that differ, look-alikes that were turned away."""
    attacks = [outcome for outcome in outcomes if not outcome["honest"]]
    honest = [outcome for outcome in outcomes if outcome["honest"]]
    return {
        "attacks": len({outcome["program"] for outcome in attacks}),
        "evaluations": len(outcomes),
        "attacks_rewarded": Counter(outcome["program"] for outcome in attacks if not outcome["denied"]),
        "attacks_with_another_status": Counter(outcome["program"] for outcome in attacks if not outcome["as_expected"]),
        "look_alikes_not_correct": Counter(outcome["program"] for outcome in honest if not outcome["as_expected"]),
        "seconds": round(sum(outcome["seconds"] for outcome in outcomes), 1),
    }


def table(outcomes: list[dict[str, Any]]) -> str:
    """Lay out one row for each program: what it must get, what it got how often, its largest reward."""
    rows = [("program", "must get", "got", "largest reward")]
    for name in sorted({outcome["program"] for outcome in outcomes}):
        these = [outcome for outcome in outcomes if outcome["program"] == name]
        got = Counter(" > ".join(outcome["statuses"]) for outcome in these)
        rows.append(
            (
                name,
                " | ".join(these[0]["expected"]),
                ", ".join(f"{count} {status}" for status, count in got.most_common()),
                f"{max(one['reward'] for one in these):.3g}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
