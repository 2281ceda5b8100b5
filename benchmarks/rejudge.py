"""Judge the recorded answers of an evaluation again: `python benchmarks/rejudge.py RECORD.jsonl.gz OUT.jsonl`.

RECORD has a line `{"task": ..., "source": ...}` for each answer. Verdicts have `correct` precision; one JSON line each,
with the recorded status beside it. An interrupted run resumes after OUT's lines. A change of the tolerance changes
which answers are correct, and generating them again costs more than judging them. `--part K/N` judges a part of them,
for another GPU each; join the files.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from pathlib import Path

from cudal1_data import Task, load_suite
from cudal1_env.errors import TaskError
from cudal1_env.judge import Judge, JudgeSettings
from parts import machine_line, results

AT_ONCE = 8


def main() -> None:
    """Judge, record and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--suite", default="generated?n=1152&seed=0")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--part", default="0/1")
    given = parser.parse_args()
    with gzip.open(given.record, "rt") as record:
        lines = [json.loads(line) for line in record]
    file = results(given.out)
    if not file.lines:
        file.add(machine_line())
    known = {line["task"] for line in file.lines if line["kind"] == "answer"}
    answers = {line["task"]: line for line in lines if line.get("source") and line["task"] not in known}
    tasks = {task.id: task for task in load_suite(given.suite, device=given.device) if task.id in answers}
    part, parts = map(int, given.part.split("/"))
    names = sorted(tasks)[part::parts]
    with Judge(JudgeSettings(device=given.device)) as judge:
        for start in range(0, len(names), AT_ONCE):
            jobs = [(tasks[name], answers[name]["source"]) for name in names[start : start + AT_ONCE]]
            for name, status, message in verdicts(judge, jobs):
                line = {"before": answers[name]["status"], "status": status, "message": message}
                file.add({"kind": "answer", "task": name, **line})
    found = [line for line in file.lines if line["kind"] == "answer"]
    for (before, status), count in sorted(Counter((line["before"], line["status"]) for line in found).items()):
        print(f"{before:16} -> {status:16} {count}")


def verdicts(judge: Judge, jobs: list[tuple[Task, str]]) -> list[tuple[str, str, str]]:
    """Return task, status and message of each; `refused` if the task cannot be judged."""
    try:
        found = judge.evaluate_many(jobs, precision="correct")
    except TaskError as error:
        if len(jobs) == 1:
            return [(jobs[0][0].id, "refused", str(error))]
        return [one for job in jobs for one in verdicts(judge, [job])]
    return [(one.task, one.status.value, one.message) for one in found]


if __name__ == "__main__":
    main()
