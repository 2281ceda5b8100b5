"""Is every attack rejected? `python benchmarks/redteam.py OUT.jsonl [--device cpu] [--repeats 20] [--only h02 ...]`.

Like `cudal1-env redteam`, but for long runs: in parts, with every outcome in a file. Each program of tests/exploits is
judged `repeats` times. One JSON line for the machine, one for each program and repeat, then one with the summary; the
table is printed. The same command resumes an interrupted run without repeating outcomes in OUT. `--known` skips the
outcomes of earlier files, and `--join` merges files. The exit status is 1 if an attack was rewarded, an honest
look-alike was rejected or the machine broke; with several parts (`--part`) it is 0 once all outcomes are in OUT.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cudal1_env.campaigns.parts import part_of
from cudal1_env.campaigns.redteam import Outcome, jobs, judge_missing, summarise, table
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import PROTOCOL_VERSION
from cudal1_env.testing.programs import Program, programs
from parts import add_known, add_options, machine_line, results


def main() -> int:
    """Judge, record and summarise."""
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
    file = results(options.out, known=options.known, join=options.join)
    if not options.join:
        known = {(line["repeat"], line["program"]) for line in file.known if line["kind"] == "outcome"}
        if (machine := machine_line()) not in file.known:
            file.add(machine)
        groups = part_of(jobs(chosen, options.repeats), options.part)
        settings = JudgeSettings(device=options.device)
        made_by = {"protocol": PROTOCOL_VERSION, "device": options.device}
        for repeat, outcome in judge_missing(lambda: Judge(settings), groups, options.device, known):
            file.add({"kind": "outcome", **made_by, "repeat": repeat, **outcome.model_dump()})
            if outcome.rewarded or not outcome.as_expected:
                print(f"{repeat} {outcome.program}: {outcome.statuses} {outcome.message}", file=sys.stderr)
    outcomes = [Outcome.model_validate(line) for line in file.lines if line["kind"] == "outcome"]
    summary = summarise(outcomes, skipped=len(named) - len(chosen))
    file.add({"kind": "summary", **summary.model_dump()})
    print(f"{table(outcomes)}\n{summary.text()}")
    return 0 if summary.passed or options.part != "0/1" else 1


def every(programs: list[Program], number: int) -> list[Program]:
    """Return every `number`-th attack with its look-alike, by name."""
    names = sorted({program.name.removesuffix(".honest") for program in programs})[::number]
    return [program for program in programs if program.name.removesuffix(".honest") in names]


if __name__ == "__main__":
    sys.exit(main())
