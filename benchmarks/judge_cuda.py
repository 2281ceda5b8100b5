"""How good is the GPU judge? `python benchmarks/judge_cuda.py OUT.jsonl [--precision report] [--repeats 5]`.

30 tasks from 10 us to 10 ms, made here. Each reference is judged against itself; then against programs that do its
work 1.5, 2 and 5 times, and, as a reference that does it two or five times for nothing, against one that does it once.
Beside it, in a process of its own, other ways of timing: CUDA events around each call (KernelBench's way) and triton's
do_bench on the same call twice, and the ratio that programs have in a plain loop, many calls between two
synchronisations, in turns: where launches take longer than kernels, five times the work is not five times the time, and
that loop tells what it is. One JSON line for the machine, one for each figure, then one with the summary, which is also
printed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cudal1_data import Task
from cudal1_env.errors import EnvError
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Evaluation
from judge_cpu import record
from parts import add_options, joined, machine_line, mine, write

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
CASES: list[tuple[str, str, str]] = [
    *[(f"relu_{n}", "torch.relu(x)", f"torch.randn({n}, {n})") for n in (256, 1024, 4096, 8192, 16384, 24576)],
    *[(f"softmax_{n}", "torch.softmax(x, -1)", f"torch.randn({n}, 4096)") for n in (128, 1024, 8192, 32768, 131072)],
    *[(f"matmul_{n}", "x @ x", f"torch.randn({n}, {n})") for n in (256, 512, 1024, 2048, 4096, 6144)],
    *[(f"sum_{n}", "x.sum(-1)", f"torch.randn({n}, 8192)") for n in (64, 1024, 16384)],
    *[(f"norm_{n}", "F.layer_norm(x, (4096,))", f"torch.randn({n}, 4096)") for n in (256, 4096, 32768)],
    *[(f"cumsum_{n}", "torch.cumsum(x, -1)", f"torch.randn({n}, 4096)") for n in (256, 4096, 32768)],
    *[(f"gelu_{n}", "F.gelu(x)", f"torch.randn({n}, 8192)") for n in (64, 2048, 16384)],
    ("transpose_8192", "x.t().contiguous()", "torch.randn(8192, 8192)"),
]


def body(expression: str, times: float) -> str:
    """Statements that compute the expression as often, half a time on half of the rows, and return it once."""
    lines = [expression] * (math.floor(times) - 1)
    if times % 1:
        lines.append(re.sub(r"\bx\b", "x[: x.shape[0] // 2]", expression, count=1))
    return "\n        ".join([*lines, f"return {expression}"])


def program(name: str, expression: str, times: float) -> str:
    """A module that computes the expression as often."""
    return f"class {name}(nn.Module):\n    def forward(self, x):\n        {body(expression, times)}\n"


def task(name: str, expression: str, inputs: str, times: float = 1) -> Task:
    """The reference that computes the expression as often."""
    source = (
        f"{HEAD}{program('Model', expression, times)}\n\ndef get_inputs():\n    return [{inputs}]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    return Task(id=f"file/{name}", source=source, name=name, level=1, origin="file")


def main() -> None:
    """Measure, record, summarise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--precision", choices=("training", "report"), default="report")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of names")
    parser.add_argument("--no-ratios", action="store_true")
    parser.add_argument("--no-others", action="store_true")
    add_options(parser)
    options = parser.parse_args()
    with options.out.open("w") as file:
        lines = joined(options.join) if options.join else measured(options)
        kept = [write(file, line) for line in lines]
        summary = write(file, {"kind": "summary", **summarise(kept)})
    print(json.dumps(summary, indent=1))


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a line for the machine, then one for each figure."""
    yield machine_line()
    cases = [case for case in CASES if case[0].startswith(tuple(options.only))]
    for name, expression, inputs in mine(cases, options.part):
        with Judge(JudgeSettings(device="cuda", profile="never")) as judge:
            one = task(name, expression, inputs)
            jobs: list[tuple[Task, float, float]] = [(one, 1, 1.0)] * options.repeats
            if not options.no_ratios:
                jobs += [(one, 1.5, 1 / 1.5), (one, 2, 0.5), (one, 5, 0.2)]
                jobs += [(task(f"{name}_x{n}", expression, inputs, n), 1, float(n)) for n in (2, 5)]
            for job, times, truth in jobs:
                try:
                    made = judge.evaluate(
                        job, HEAD + program("ModelNew", expression, times), precision=options.precision
                    )
                except EnvError as error:
                    yield {"kind": "refused", "task": job.id, "truth": truth, "message": str(error)}
                    continue
                yield {**record("judge", made), "truth": truth, "gpu_states": None, "clocks": clocks(made)}
                print(f"{job.id} {truth}: {made.message} [{made.seconds.total_s:.1f} s]", file=sys.stderr, flush=True)
        if not options.no_others:
            yield from others(name, expression, inputs)


def clocks(made: Evaluation) -> dict[str, Any]:
    """What the driver told after the pairs: the multiprocessors' clock (least, median, most) and what held it back."""
    states = [state for launch in made.gpu_states for state in launch]
    mhz = [state.sm_mhz for state in states]
    reasons = sorted({reason for state in states for reason in state.throttled})
    return {"sm_mhz": [min(mhz), statistics.median(mhz), max(mhz)] if mhz else [], "throttled": reasons}


OTHERS = """
import json, statistics, sys, time, torch, torch.nn as nn, torch.nn.functional as F, triton.testing
programs, inputs = sys.argv[1], sys.argv[2]
torch.set_grad_enabled(False)
torch.set_default_device("cuda")
x = eval(inputs)
rotating = [x] + [eval(inputs) for _ in range(min(31, (4 << 30) // x.nbytes))]
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
def loop(model, calls):
    kept = [None] * len(rotating)  # as the judge does: results live on for a while
    torch.cuda.synchronize()
    began = time.perf_counter()
    for k in range(calls): kept[k % len(kept)] = model(rotating[k % len(rotating)])
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls * 1e3
loop(models["Once"], 4)
calls = max(4, min(400, int(20 / loop(models["Once"], 20))))
loops = {name: [] for name in models}
for model in models.values(): loop(model, calls)
for _ in range(15):
    for name, model in models.items(): loops[name].append(loop(model, calls))
print(json.dumps({"events": [events(), events()], "do_bench": [bench(), bench()],
    "loop": {name: statistics.median(times) for name, times in loops.items()}}))
"""


def others(name: str, expression: str, inputs: str) -> Iterator[dict[str, Any]]:
    """Time the same call twice in one process by CUDA events and by do_bench, whose ratio should be 1; and loops."""
    names = {"Once": 1, "OnceAndHalf": 1.5, "Twice": 2, "FiveTimes": 5}
    programs = HEAD + "\n\n".join(program(which, expression, times) for which, times in names.items())
    command = [sys.executable, "-c", OTHERS, programs, inputs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    for method, ms in json.loads(done.stdout).items():
        yield {"kind": "other", "task": f"file/{name}", "method": method, "ms": ms}


def loop_truths(lines: list[dict[str, Any]]) -> dict[tuple[str, float], float]:
    """Speedup by task and by the nominal one, as programs in a plain loop have it."""
    truths: dict[tuple[str, float], float] = {}
    for line in lines:
        if line.get("method") == "loop":
            ms = line["ms"]
            for which, times in (("OnceAndHalf", 1.5), ("Twice", 2.0), ("FiveTimes", 5.0)):
                truths[line["task"], round(1 / times, 6)] = ms["Once"] / ms[which]
                truths[f"{line['task']}_x{times:g}", times] = ms[which] / ms["Once"]
    return truths


def summarise(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Bias, spread and false alarms."""
    judged = [line for line in lines if line["kind"] == "judge"]
    right = [line for line in judged if line["speedup"] is not None]
    itself = [line for line in right if line["truth"] == 1.0]
    result: dict[str, Any] = {
        "evaluations": len(judged),
        "refused": [(line["task"], line["message"]) for line in lines if line["kind"] == "refused"],
        "not_correct": [(line["task"], line["status"], line["message"]) for line in judged if not line["speedup"]],
        "itself": len(itself),
    }
    if itself:
        points = [line["speedup"]["point"] for line in itself]
        result |= {
            "itself_median": statistics.median(points),
            "itself_excluding_one": sum(line["speedup"]["low"] > 1 or line["speedup"]["high"] < 1 for line in itself),
            "itself_within_1_percent_above_100_us": share_within(itself, 0.01, slow=True),
            "itself_within_3_percent_below_100_us": share_within(itself, 0.03, slow=False),
        }
    truths = loop_truths(lines)
    ratios = [line for line in right if line["truth"] != 1.0]
    against: dict[str, list[float]] = {"nominal": [], "nominal_above_100_us": [], "loop": []}
    for line in ratios:
        point, truth = line["speedup"]["point"], line["truth"]
        against["nominal"].append(point / truth - 1)
        if min(line[arm]["median_ms"] for arm in ("reference", "candidate")) > 0.1:
            against["nominal_above_100_us"].append(point / truth - 1)
        if (found := truths.get((line["task"], round(truth, 6)))) is not None:
            against["loop"].append(point / found - 1)
    for name, errors in against.items():
        if errors:
            result[f"ratios_{name}"] = {
                "count": len(errors),
                "median_error": statistics.median(abs(error) for error in errors),
                "within_2_percent": sum(abs(error) <= 0.02 for error in errors) / len(errors),
                "within_5_percent": sum(abs(error) <= 0.05 for error in errors) / len(errors),
            }
    for method in ("events", "do_bench"):
        ratios = [line["ms"][0] / line["ms"][1] for line in lines if line.get("method") == method]
        if ratios:
            result[f"{method}_median_distance_from_one"] = statistics.median(abs(ratio - 1) for ratio in ratios)
    seconds = [line["seconds"] for line in right]
    if seconds:
        result["seconds_median"] = {name: statistics.median(one[name] for one in seconds) for name in seconds[0]}
    return result


def share_within(lines: list[dict[str, Any]], limit: float, *, slow: bool) -> float | None:
    """Share of evaluations that come out within a distance from 1, of calls over (or under) 100 us."""
    chosen = [line for line in lines if (line["reference"]["median_ms"] > 0.1) == slow]
    return sum(abs(line["speedup"]["point"] - 1) <= limit for line in chosen) / len(chosen) if chosen else None


if __name__ == "__main__":
    main()
