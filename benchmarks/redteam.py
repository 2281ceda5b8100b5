"""Is every attack denied? `python benchmarks/redteam.py OUT.jsonl [--device cpu] [--repeats 20] [--only h02 ...]`.

What `cudal1-env redteam` does, for hours: in parts, and with every outcome in a file. Each program of
tests/exploits is judged `repeats` times. One JSON line for the machine, one for each program and repeat, then one with
the summary; the table is printed. The same command goes on where it was cut off: no outcome that is in OUT is asked for
again, whatever it was. `--known` leaves out what earlier files hold, and `--join` puts all
into one. Exit status 1 when an attack was rewarded, an honest look-alike denied or the machine broken;
a part of several (`--part`) ends with 0 when all its outcomes are in OUT.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.testing.programs import Program, programs
from cudal1_env.testing.redteam import Outcome, judge_all, summarise, table
from parts import add_known, add_options, joined, left_by, machine_line, mine, write

_TOGETHER = 24
"""Programs that share a judge: enough that its start does not matter, few enough for parts of equal length."""


def main() -> int:
    """Judge, record, summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of names; by default every program")
    parser.add_argument("--without", nargs="*", default=[], help="beginnings of names that are left out")
    parser.add_argument("--every", type=int, default=1, help="only every N-th attack, with its look-alike")
    add_options(parser)
    add_known(parser)
    options = parser.parse_args()
    named = programs(options.only)
    able = [program for program in named if program.runs_on(options.device)]
    chosen = every([one for one in able if not one.name.startswith(tuple(options.without))], options.every)
    lines = list(joined(options.join)) if options.join else left_by(options.out)
    before = [*lines, *joined(options.known)]
    known = {(line["repeat"], line["program"]) for line in before if line["kind"] == "outcome"}
    with options.out.open("w" if options.join else "a") as file:
        if options.join:
            for line in lines:
                write(file, line)
        else:
            if (machine := machine_line()) not in before:
                lines.append(write(file, machine))
            for repeat, group in mine(jobs(chosen, options.repeats), options.part):
                left = [program for program in group if (repeat, program.name) not in known]
                for outcome in judge_all(lambda: Judge(JudgeSettings(device=options.device)), left, options.device):
                    lines.append(write(file, {"kind": "outcome", "repeat": repeat, **outcome.model_dump()}))
                    if outcome.rewarded or not outcome.as_expected:
                        print(f"{repeat} {outcome.program}: {outcome.statuses} {outcome.message}", file=sys.stderr)
        outcomes = [Outcome.model_validate(line) for line in lines if line["kind"] == "outcome"]
        summary = summarise(outcomes, skipped=len(named) - len(chosen))
        write(file, {"kind": "summary", **summary.model_dump()})
    print(f"{table(outcomes)}\n{summary.text()}")
    return 0 if summary.passed or options.part != "0/1" else 1


def every(programs: list[Program], number: int) -> list[Program]:
    """Every so-many-th attack with its look-alike, in the order of names."""
    names = sorted({program.name.removesuffix(".honest") for program in programs})[::number]
    return [program for program in programs if program.name.removesuffix(".honest") in names]


def jobs(chosen: list[Program], repeats: int) -> list[tuple[int, list[Program]]]:
    """Some programs that share a judge, those of a task behind each other, once for each repeat."""
    order = sorted(chosen, key=lambda program: program.header["task"])
    some = [order[start : start + _TOGETHER] for start in range(0, len(order), _TOGETHER)]
    return [(repeat, group) for repeat in range(repeats) for group in some]


if __name__ == "__main__":
    sys.exit(main())
