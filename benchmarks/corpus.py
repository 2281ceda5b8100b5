"""Speed of building the corpus, size and load time of 3,000 pairs, and templates' coverage of generated tasks.

Writes one JSON object to standard output. Needs no GPU, because nothing is judged.
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from cudal1_data import Task, load_suite
from cudal1_data.corpus import Corpus
from cudal1_data.corpus.build import build
from cudal1_data.corpus.stats import stats
from cudal1_data.generator import tag_of
from cudal1_data.kernelgen.make import BACKENDS, variants

PAIRS = 3000
SUITES = ("starter", "generated?n=160&seed=0")
COVERED = ("generated?n=160&seed=0", "generated?n=960&seed=3")
LOAD = """
import sys, time
from pathlib import Path
import pyarrow.parquet
from cudal1_data.corpus import load_corpus
def held():
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])
before, start = held(), time.perf_counter()
corpus = load_corpus(Path(sys.argv[1]))
after = held()
print(len(corpus), time.perf_counter() - start, (after - before) * 1024)
"""


ALL_BACKENDS = {"pytorch", "triton", "cuda-nvrtc", "cuda-load-inline"}
FEWEST = 6


def coverage(tasks: Iterable[Task]) -> dict[str, dict[str, int]]:
    """Count by family the tasks with every backend and at least six variants, without `torch.compile`."""
    found: dict[str, dict[str, int]] = {}
    for task in tasks:
        family = tag_of(task, "family")
        counts = found.setdefault(family, {"tasks": 0, "covered": 0, "fewest": 1 << 30})
        made = variants(task, tuple(one for one in BACKENDS if one in ALL_BACKENDS))
        counts["tasks"] += 1
        counts["covered"] += {one.backend for one in made} == ALL_BACKENDS and len(made) >= FEWEST
        counts["fewest"] = min(counts["fewest"], len(made))
    return found


def loaded(path: Path) -> dict[str, float]:
    """Load a corpus in a new process to measure its memory; return pairs, bytes and seconds."""
    done = subprocess.run([sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, check=True)
    pairs, seconds, memory = done.stdout.split()
    return {
        "pairs": int(pairs),
        "file_bytes": path.stat().st_size,
        "load_s": round(float(seconds), 3),
        "memory_bytes": int(memory),
    }


def main() -> None:
    """Measure and print."""
    tasks = [task for spec in SUITES for task in load_suite(spec, device="cuda")]
    start = time.perf_counter()
    made = list(build(tasks, per_task=16, failures=2))
    elapsed_s = time.perf_counter() - start
    corpus = Corpus(made[:PAIRS])
    found = stats(corpus)
    start = time.perf_counter()
    whole = sum(1 for _ in build(tasks[:60], failures=0))
    whole_s = time.perf_counter() - start
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("corpus.parquet", "corpus.jsonl")]
        for path in paths:
            corpus.save(path)
        files = {path.suffix.removeprefix("."): loaded(path) for path in paths}
    print(
        json.dumps(
            {
                "machine": platform.machine(),
                "python": platform.python_version(),
                "tasks": len(tasks),
                "pairs": len(made),
                "build_s": round(elapsed_s, 2),
                "pairs_per_s": round(len(made) / elapsed_s, 1),
                "every_choice": {"tasks": 60, "pairs": whole, "pairs_per_s": round(whole / whole_s, 1)},
                "max_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "files": files,
                "backends": found.backends,
                "labels": found.labels,
                "coverage": {spec: coverage(load_suite(spec, device="cuda")) for spec in COVERED},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
