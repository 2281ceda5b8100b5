"""Where does the judge spend its time on a GPU? `python benchmarks/judge_profile.py OUT.txt [--only relu_256 ...]`.

Each chosen task of judge_cuda.py is judged against itself, first to make its inputs, then again under Python's
profiler, because timed calls are a minor part of an evaluation. The oracle's time for a set of inputs is measured, too.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import time
from pathlib import Path

from cudal1_env.judge import Judge, JudgeSettings
from judge_cuda import CASES, HEAD, program, task

_SETS = 200
_LINES = 45


def main() -> None:
    """Profile, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--precision", choices=("training", "report"), default="training")
    parser.add_argument("--only", nargs="*", default=["relu_256", "relu_16384", "matmul_1024"], help="names")
    options = parser.parse_args()
    cases = [case for case in CASES if case[0] in options.only]
    with options.out.open("w") as file, Judge(JudgeSettings(device=options.device, profile="never")) as judge:
        for name, expression, inputs in cases:
            one, source = task(name, expression, inputs), HEAD + program("ModelNew", expression, 1)
            first = judge.evaluate(one, source, precision=options.precision)
            profiler = cProfile.Profile()
            again = profiler.runcall(judge.evaluate, one, source, precision=options.precision)
            text = io.StringIO()
            stats = pstats.Stats(profiler, stream=text).strip_dirs()
            for order in ("tottime", "cumulative"):
                stats.sort_stats(order).print_stats(_LINES)
            print(f"=== {name}: {again.message}", file=file)
            for evaluation in (first, again):
                seconds = {key: round(value, 3) for key, value in evaluation.seconds.model_dump().items()}
                print(
                    f"{evaluation.trials} trials, {evaluation.pairs} pairs, {evaluation.calls} calls, {seconds}",
                    file=file,
                )
            print(f"{set_ms(judge, one.id):.3f} ms for a set of inputs with its answers\n{text.getvalue()}", file=file)


def set_ms(judge: Judge, task_id: str) -> float:
    """Return the milliseconds in which a task's pool makes a new set."""
    pool = next(pool for pool in judge._pools.values() if pool.task.id == task_id)
    first = 1 << 20
    began = time.perf_counter()
    for start in range(first, first + _SETS, step := pool.oracle.max_at_once):
        pool._make(range(start, min(start + step, first + _SETS)))
    return (time.perf_counter() - began) / _SETS * 1e3


if __name__ == "__main__":
    main()
