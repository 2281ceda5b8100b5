"""What does each stretch of calls take, in the order of time? `python benchmarks/turn_log.py OUT.jsonl [--only NAMES]`.

Each task of judge_cuda.py that is asked for is judged against itself. One JSON line for each stretch of calls between
release and answer: the arm, how many calls, whether they were empty or watched, what the judge's clock saw, how
much of it the reading of samples behind the worker's flag was (on a GPU), and how long it took with all that is not
timed. What drifts, jumps, or goes with the call before shows here; records hold what is left after the overhead was
taken off.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.device.cuda_memory import CudaMemory
from cudal1_env.judge.measure.arm import Arm, Call
from cudal1_env.judge.oracle.pool import InputSet
from judge_cuda import CASES, HEAD, program, task
from parts import machine_line, write

Samples = Callable[[], list[npt.NDArray[np.generic]]]


def main() -> None:
    """Judge with a log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--precision", choices=("training", "report"), default="training")
    default = ["sum_16384", "relu_16384", "transpose_8192", "relu_4096", "softmax_128"]
    parser.add_argument("--only", nargs="*", default=default, help="names")
    options = parser.parse_args()
    stretches = log_calls()
    cases = [case for case in CASES if case[0] in options.only]
    with options.out.open("w") as file, Judge(JudgeSettings(device=options.device, profile="never")) as judge:
        write(file, machine_line())
        for name, expression, inputs in cases:
            stretches.clear()
            source = HEAD + program("ModelNew", expression, 1)
            one = judge.evaluate(task(name, expression, inputs), source, precision=options.precision)
            for stretch in stretches:
                write(file, {"kind": "stretch", "task": name, **stretch})
            found = {"turns_ms": one.turns_ms, "overhead_ms": one.overhead_ms, "message": one.message}
            print(json.dumps(write(file, {"kind": "evaluation", "task": name, **found})["message"]))


def log_calls() -> list[dict[str, Any]]:
    """Have every timed call of this process written down; return the list to which it is added."""
    stretches: list[dict[str, Any]] = []
    flagged_s, read_s = [0.0], [0.0]
    call, wait, read = Arm.call, Arm._wait, CudaMemory.samples_as_before

    def waited(self: Arm, words: memoryview, word: int, value: int, limit_ns: int) -> None:
        wait(self, words, word, value, limit_ns)
        flagged_s[0] = time.perf_counter()

    def have_read(self: CudaMemory, page: bytes) -> Samples | None:
        result = read(self, page)
        read_s[0] = time.perf_counter()
        return result

    def logged(self: Arm, sets: Sequence[InputSet], *, empty: bool = False, watch: bool = False) -> Call:
        began_s = time.perf_counter()
        result = call(self, sets, empty=empty, watch=watch)
        stretch = {"arm": self.wanted, "pid": self.worker.pid, "calls": len(sets), "empty": empty, "watch": watch}
        seen = {"elapsed_ms": result.elapsed_ns * 1e-6, "read_ms": max(0.0, read_s[0] - flagged_s[0]) * 1e3}
        stretches.append({**stretch, **seen, "at_s": began_s, "took_s": time.perf_counter() - began_s})
        return result

    Arm.call, Arm._wait, CudaMemory.samples_as_before = logged, waited, have_read
    return stretches


if __name__ == "__main__":
    main()
