"""Time and size of the report of a large run: `python benchmarks/report.py OUT.json`.

The run is synthetic: 10,000 verdicts on 250 tasks, with programs of the starter suite, and with hostile text in every
program, task name and message. Its speedups are random, not measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import tyro
from cudal1_agent.reporting.page import report
from cudal1_agent.run.folder import RunFolder
from cudal1_agent.settings import Settings
from cudal1_data import load_suite
from cudal1_env import Archive, Evaluation
from cudal1_env.records import Latency, Speedup, Status
from cudal1_env.stats import summarize_speedups

HOSTILE = (
    "<script>document.title='run'</script>",
    "</script></style></pre><img src=x onerror=alert(1)>",
    "javascript:alert(1) <a href='javascript:alert(1)'>click</a>",
    "\x00\x07\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "\u202egnp.exe\u2066\u200b\ufeff",
    "{{ 7 * 7 }}{% raw %}&lt;&#39;\"'`",
    "x" * 5000,
)
"""Texts that must be shown as they are and never interpreted."""


def main(out: tyro.conf.Positional[Path], variants: int = 10_000, tasks: int = 250, seed: int = 0) -> None:
    """Make the run, write its report, and record time, sizes and memory.

    Args:
        out: File for the record.
        variants: Verdicts in the run.
        tasks: Tasks of the verdicts.
        seed: Seed of the random values.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        make_run(run, variants=variants, tasks=tasks, seed=seed)
        began_s = time.perf_counter()
        path = report(run)
        found = {
            "kind": "report",
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "variants": variants,
            "tasks": tasks,
            "seconds": round(time.perf_counter() - began_s, 2),
            "megabytes": round(path.stat().st_size / 1e6, 2),
            "archive_megabytes": round((run / "archive.sqlite").stat().st_size / 1e6, 2),
            "peak_memory_mebibytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
    out.write_text(json.dumps(found) + "\n")
    print(json.dumps(found))


def make_run(run: Path, *, variants: int, tasks: int, seed: int = 0, hostile: bool = True) -> None:
    """Make the directory of a finished run.

    Args:
        run: The directory.
        variants: Verdicts in the run.
        tasks: Tasks of the verdicts.
        seed: Seed of the random values.
        hostile: Put hostile text into programs, task names and messages.
    """
    draw = random.Random(seed)
    known = [task for task in load_suite("starter", device="cpu") if task.variants]
    bait = HOSTILE if hostile else ("",)
    names = [f"{known[at % len(known)].id}-{at}{bait[at % len(bait)][:60]}" for at in range(tasks)]
    with RunFolder.begin(run, Settings()) as folder:
        for start in range(0, variants, 500):
            verdicts = [
                _verdict(known[at % tasks % len(known)], names[at % tasks], bait[at % len(bait)], at, draw)
                for at in range(start, min(start + 500, variants))
            ]
            folder.archive.add_all(verdicts)
        _metrics(folder, names, draw)
        folder.mark("finished")


def _verdict(task: Any, name: str, bait: str, number: int, draw: random.Random) -> Evaluation:
    status = draw.choices(
        [Status.CORRECT, Status.WRONG_OUTPUT, Status.RUNTIME_ERROR, Status.TIMEOUT, Status.TAMPERING, Status.UNSTABLE],
        [60, 20, 12, 3, 3, 2],
    )[0]
    variant = draw.choice(task.variants).source
    # A variant of the task, made unique by a comment.
    source = f"{variant}\n# variant {number}: {bait}\nNOTE = {bait!r}\n"
    point = draw.lognormvariate(0.3, 0.5)
    width = 1 + draw.uniform(0.005, 0.15)
    latency = Latency(median_ms=2.0, low_ms=1.9, high_ms=2.1, samples=16) if status is Status.CORRECT else None
    arm = tuple(round(draw.uniform(1.9, 2.1), 6) for _ in range(16))
    return Evaluation(
        id=f"{number:08d}",
        created_at="2026-11-25T00:00:00+00:00",
        task=name,
        task_sha256=hashlib.sha256(task.source.encode()).hexdigest(),
        task_source=task.source,
        source=source,
        source_sha256=hashlib.sha256(source.encode()).hexdigest(),
        status=status,
        message=f"{status.value}: {bait}",
        speedup=Speedup(low=point / width, point=point, high=point * width) if latency is not None else None,
        reference=latency,
        candidate=latency,
        precision="training",
        samples_ms=((arm, arm), (arm, arm)),
        stderr=bait,
    )


def _metrics(folder: RunFolder, names: list[str], draw: random.Random) -> None:
    archive: Archive = folder.archive
    for step in range(1, 901):
        folder.metrics.append({"event": "step", "stage": "sft", "step": step, "loss": 6 / step**0.3})
    best = {name: archive.best(name) for name in names}
    for gain, stage in ((0.6, "sft"), (0.8, "self_train"), (1.0, "contrast")):
        answers: list[float | None] = []
        for name in names:
            found = best[name]
            right = found is not None and found.speedup is not None and draw.random() < 0.9
            speedup = found.speedup.model_dump() if right and found is not None and found.speedup is not None else None
            speedup = {end: value * gain for end, value in speedup.items()} if speedup is not None else None
            answers.append(speedup["point"] if speedup is not None else None)
            record = {"event": "answer", "stage": stage, "group": "train", "task": name, "status": "CORRECT"}
            folder.metrics.append({**record, "speedup": speedup, "source_sha256": ""})
        summary = summarize_speedups(answers).model_dump()
        folder.metrics.append({"event": "table", "stage": stage, "group": "train", **summary})
        spent = {"generating_s": 60.0, "judging_s": 200.0, "learning_s": 100.0, "waiting_s": 10.0}
        folder.metrics.append({"event": "seconds", "phase": stage, "wall_s": 370.0, "measured": 3000, **spent})


if __name__ == "__main__":
    tyro.cli(main)
