"""How good is the GPU judge? `python benchmarks/judge_cuda.py OUT.jsonl [--precision report] [--repeats 5]`.

30 generated tasks from 10 us to 10 ms. Each reference is judged against itself, all tasks once per repeat; then against
programs that do its work 1.5, 2 and 5 times; then, with wasted work that doubles or quintuples the reference's time,
against a program without it. For comparison, a separate process per task runs other timing methods. CUDA events around
each call (KernelBench's method) and triton's do_bench time the same call twice, five times in one process, as usual for
them, so their figures exclude differences between processes. A plain loop (as in plain_loop.py: single calls minus an
empty one, in random order) gives the true ratio of programs: where launches take longer than kernels, five times the
work is not five times the time. One JSON line for the machine, one for each figure, then one with the summary, which is
also printed. The same command resumes an interrupted run; `--known` skips the lines of earlier files, and `--join`
merges files.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cudal1_data import Task
from cudal1_env.campaigns.parts import part_of
from cudal1_env.errors import MachineError, TaskError
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Evaluation, Precision
from judge_cpu import record
from parts import add_known, add_options, machine_line, results

PAIRS = 5
"""Number of times that each other timing method measures a call against itself."""
LEASE_MS = 5.0
"""The summary has seconds of evaluations of tasks whose reference takes at most this."""

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
CASES: list[tuple[str, str, str]] = [
    *[(f"relu_{n}", "torch.relu(x)", f"torch.randn({n}, {n})") for n in (256, 1024, 4096, 8192, 16384)],
    *[(f"softmax_{n}", "torch.softmax(x, -1)", f"torch.randn({n}, 4096)") for n in (128, 1024, 8192, 32768)],
    *[(f"matmul_{n}", "x @ x", f"torch.randn({n}, {n})") for n in (256, 512, 1024, 2048, 3072, 4096, 5120, 6144)],
    *[(f"sum_{n}", "x.sum(-1)", f"torch.randn({n}, 8192)") for n in (64, 1024, 16384)],
    *[(f"norm_{n}", "F.layer_norm(x, (4096,))", f"torch.randn({n}, 4096)") for n in (256, 4096, 32768)],
    *[(f"cumsum_{n}", "torch.cumsum(x, -1)", f"torch.randn({n}, 4096)") for n in (256, 4096, 32768)],
    *[(f"gelu_{n}", "F.gelu(x)", f"torch.randn({n}, 8192)") for n in (64, 2048, 16384)],
    ("transpose_8192", "x.t().contiguous()", "torch.randn(8192, 8192)"),
]


def body(expression: str, times: float) -> str:
    """Return statements that compute the expression `times` times (a half on half of the rows) and return it once."""
    lines = [expression] * (math.floor(times) - 1)
    if times % 1:
        lines.append(re.sub(r"\bx\b", "x[: x.shape[0] // 2]", expression, count=1))
    return "\n        ".join([*lines, f"return {expression}"])


def program(name: str, expression: str, times: float) -> str:
    """Return a module that computes the expression `times` times."""
    return f"class {name}(nn.Module):\n    def forward(self, x):\n        {body(expression, times)}\n"


def task(name: str, expression: str, inputs: str, times: float = 1) -> Task:
    """Return a task whose reference computes the expression `times` times."""
    source = (
        f"{HEAD}{program('Model', expression, times)}\n\ndef get_inputs():\n    return [{inputs}]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    return Task(id=f"file/{name}", source=source, name=name, level=1, origin="file")


def main() -> None:
    """Measure, record and summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--precision", choices=("training", "report"), default="report")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of names")
    parser.add_argument("--no-ratios", action="store_true")
    parser.add_argument("--no-others", action="store_true")
    add_options(parser)
    add_known(parser)
    options = parser.parse_args()
    file = results(options.out, known=options.known, join=options.join)
    if not options.join:
        for line in measured(options, file.known):
            file.add(line)
    summary = file.add({"kind": "summary", **summarise(file.lines)})
    print(json.dumps(summary, indent=1))


Job = tuple[Task, str, float]
"""Task, program, and nominal speedup."""


def measured(options: argparse.Namespace, before: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a line for the machine, then one for each figure, except those of an earlier run."""
    if (machine := machine_line()) not in before:
        yield machine
    cases = part_of([case for case in CASES if case[0].startswith(tuple(options.only))], options.part)
    known = Counter((line["task"], line["truth"]) for line in before if "truth" in line)
    jobs: list[Job] = []
    for job in jobs_of(cases, options.repeats, ratios=not options.no_ratios):
        key = (job[0].id, job[2])
        known[key] -= 1
        if known[key] < 0:
            jobs.append(job)
    yield from judged(jobs, options.precision)
    timed = {line["task"] for line in before if "method" in line}
    for name, expression, inputs in cases:
        if not options.no_others and f"file/{name}" not in timed:
            yield from others(name, expression, inputs)


def jobs_of(cases: Sequence[tuple[str, str, str]], repeats: int, *, ratios: bool) -> Iterator[Job]:
    """Yield all tasks against themselves, `repeats` times, then known ratios, so that a partial run has every task."""
    for _ in range(repeats):
        for name, expression, inputs in cases:
            yield task(name, expression, inputs), HEAD + program("ModelNew", expression, 1), 1.0
    for name, expression, inputs in cases if ratios else ():
        one = task(name, expression, inputs)
        for times in (1.5, 2, 5):
            yield one, HEAD + program("ModelNew", expression, times), 1 / times
        for times in (2, 5):
            slow = task(f"{name}_x{times}", expression, inputs, times)
            yield slow, HEAD + program("ModelNew", expression, 1), float(times)


def judged(jobs: Sequence[Job], precision: Precision) -> Iterator[dict[str, Any]]:
    """Yield a line for each evaluation; after a machine error, the rest gets a new judge.

    Raises:
        MachineError: Two in a row, so that the second job is not the cause; that job has no line.
    """
    left, broken = list(jobs), False
    while left:
        with Judge(JudgeSettings(device="cuda", profile="never")) as judge:
            while left:
                job, source, truth = left.pop(0)
                try:
                    made = judge.evaluate(job, source, precision=precision)
                except (TaskError, MachineError) as error:
                    if broken and isinstance(error, MachineError):
                        raise
                    broken = isinstance(error, MachineError)
                    yield {"kind": "refused", "task": job.id, "truth": truth, "message": str(error)}
                    if broken:
                        break
                    continue
                broken = False
                yield {**record("judge", made), "truth": truth, "gpu_states": None, "clocks": clocks(made)}
                print(f"{job.id} {truth}: {made.message} [{made.seconds.total_s:.1f} s]", file=sys.stderr, flush=True)


def clocks(made: Evaluation) -> dict[str, Any]:
    """Return the driver's data after the pairs: multiprocessor clocks (min, median, max) and throttling reasons."""
    states = [state for trial in made.gpu_states for state in trial]
    mhz = [state.sm_mhz for state in states]
    reasons = sorted({reason for state in states for reason in state.throttled})
    return {"sm_mhz": [min(mhz), statistics.median(mhz), max(mhz)] if mhz else [], "throttled": reasons}


OTHERS = """
import json, random, statistics, sys, time, torch, torch.nn as nn, torch.nn.functional as F, triton.testing
programs, inputs, pairs = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_grad_enabled(False)
torch.set_default_device("cuda")
x = eval(inputs)
rotating = [x] + [eval(inputs) for _ in range(min(7, (4 << 30) // x.nbytes))]
scope = {}
exec(programs, scope)
models = {name: scope[name]() for name in ("Once", "OnceAndHalf", "Twice", "FiveTimes")}
work = lambda: models["Once"](x)
def events():
    for _ in range(3): work()
    times = []
    for _ in range(100):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); work(); b.record(); torch.cuda.synchronize(); times.append(a.elapsed_time(b))
    return statistics.mean(times)
bench = lambda: triton.testing.do_bench(work, return_mode="median")
plain = {name: [] for name in (*models, "Empty")}
fixed, dummy = x.clone(), torch.zeros(1)
arms = {name: lambda model=model: model(fixed) for name, model in models.items()} | {"Empty": lambda: dummy.add_(1)}
names = list(arms)
for number in range(12 + 60):
    random.shuffle(names)
    for which, name in enumerate(names):
        fixed.copy_(rotating[(number + which) % len(rotating)])
        torch.cuda.synchronize()
        began = time.perf_counter()
        kept = arms[name]()
        torch.cuda.synchronize()
        if number >= 12: plain[name].append((time.perf_counter() - began) * 1e3)
        del kept
empty = statistics.median(plain.pop("Empty"))
print(json.dumps({"events": [events() for _ in range(2 * pairs)], "do_bench": [bench() for _ in range(2 * pairs)],
    "loop": {name: statistics.median(times) - empty for name, times in plain.items()}}))
"""


def others(name: str, expression: str, inputs: str) -> Iterator[dict[str, Any]]:
    """Time a call in pairs in one process with CUDA events and do_bench (true ratio 1), and the programs in a loop."""
    names = {"Once": 1, "OnceAndHalf": 1.5, "Twice": 2, "FiveTimes": 5}
    programs = HEAD + "\n\n".join(program(which, expression, times) for which, times in names.items())
    command = [sys.executable, "-c", OTHERS, programs, inputs, str(PAIRS)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = error.stderr.strip().splitlines() if isinstance(error.stderr, str) else []
        # Not the error's own text, because it contains the programs.
        message = said[-1] if said else f"{type(error).__name__} of the other ways of timing"
        yield {"kind": "refused", "task": f"file/{name}", "method": "others", "message": message}
        return
    for method, ms in json.loads(done.stdout).items():
        yield {"kind": "other", "task": f"file/{name}", "method": method, "ms": ms}


def loop_truths(lines: list[dict[str, Any]]) -> dict[tuple[str, float], float]:
    """Return the speedup in a plain loop, by task and nominal speedup."""
    truths: dict[tuple[str, float], float] = {}
    for line in lines:
        if line.get("method") == "loop":
            ms = line["ms"]
            for which, times in (("OnceAndHalf", 1.5), ("Twice", 2.0), ("FiveTimes", 5.0)):
                truths[line["task"], round(1 / times, 6)] = ms["Once"] / ms[which]
                truths[f"{line['task']}_x{times:g}", times] = ms[which] / ms["Once"]
    return truths


def summarise(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return bias, spread and false alarms, over correct evaluations."""
    judged = [line for line in lines if line["kind"] == "judge"]
    correct = [line for line in judged if line["status"] == "CORRECT"]
    itself = [line for line in correct if line["truth"] == 1.0]
    result: dict[str, Any] = {
        "evaluations": len(judged),
        "statuses": dict(Counter(line["status"] for line in judged)),
        "refused": [(line["task"], line["message"]) for line in lines if line["kind"] == "refused"],
        "not_correct": [(line["task"], line["status"], line["message"]) for line in judged if line not in correct],
        "itself_excluding_one": sum(line["speedup"]["low"] > 1 or line["speedup"]["high"] < 1 for line in itself),
        "itself": itself_figures(lines, itself),
        "slower_candidates": errors(lines, [line for line in correct if line["truth"] < 1.0]),
        "wasteful_references": errors(lines, [line for line in correct if line["truth"] > 1.0]),
    }
    seconds = [line["seconds"] for line in correct if line["reference"]["median_ms"] <= LEASE_MS]
    if seconds:
        medians = {name: statistics.median(one[name] for one in seconds) for name in seconds[-1] if name in seconds[0]}
        result["seconds_median_up_to_5_ms"] = {"evaluations": len(seconds), **medians}
    return result


def itself_figures(lines: list[dict[str, Any]], itself: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return by how much a call's ratio to itself deviates from 1, for the judge and the other methods.

    The judge decides whether a task takes over 100 us; without a correct evaluation, the plain loop does.
    """
    ratios: dict[str, list[tuple[str, float]]] = {
        "judge": [(line["task"], line["speedup"]["point"]) for line in itself],
        "events": [],
        "do_bench": [],
    }
    takes_ms: dict[str, float] = {}
    for line in lines:
        if line.get("method") == "loop":
            takes_ms[line["task"]] = line["ms"]["Once"]
        elif line["kind"] == "other":
            pairs = zip(line["ms"][::2], line["ms"][1::2], strict=True)
            ratios[line["method"]] += [(line["task"], one / other) for one, other in pairs]
    takes_ms |= {line["task"]: line["reference"]["median_ms"] for line in itself}
    found: dict[str, dict[str, Any]] = {}
    for method, these in ratios.items():
        slow = [ratio for name, ratio in these if takes_ms[name] > 0.1]
        fast = [ratio for name, ratio in these if takes_ms[name] <= 0.1]
        if these:
            found[method] = {
                "ratios": len(these),
                "median_bias": statistics.median(ratio for _, ratio in these) - 1,
                "median_distance_from_one": statistics.median(abs(ratio - 1) for _, ratio in these),
                "within_1_percent_above_100_us": share_within(slow, 0.01),
                "within_3_percent_below_100_us": share_within(fast, 0.03),
            }
    return found


def share_within(ratios: Sequence[float], limit: float) -> float | None:
    """Return the share of ratios within a distance from 1; None without ratios."""
    return sum(abs(ratio - 1) <= limit for ratio in ratios) / len(ratios) if ratios else None


def errors(lines: list[dict[str, Any]], ratios: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the deviation of evaluations from the nominal ratio and from the plain loop's."""
    truths = loop_truths(lines)
    against: dict[str, list[float]] = {"nominal": [], "nominal_above_100_us": [], "loop": []}
    for line in ratios:
        point, truth = line["speedup"]["point"], line["truth"]
        against["nominal"].append(point / truth - 1)
        if min(line[arm]["median_ms"] for arm in ("reference", "candidate")) > 0.1:
            against["nominal_above_100_us"].append(point / truth - 1)
        if (found := truths.get((line["task"], round(truth, 6)))) is not None:
            against["loop"].append(point / found - 1)
    return {
        name: {
            "count": len(these),
            "median_error": statistics.median(abs(error) for error in these),
            "within_2_percent": sum(abs(error) <= 0.02 for error in these) / len(these),
            "within_5_percent": sum(abs(error) <= 0.05 for error in these) / len(these),
        }
        for name, these in against.items()
        if these
    }


if __name__ == "__main__":
    main()
