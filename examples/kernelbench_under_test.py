"""Test another evaluator with cudal1's suite of attacks: by default KernelBench's, which you install yourself.

    python examples/kernelbench_under_test.py
    python examples/kernelbench_under_test.py --evaluator my_package.eval:my_function --only mutant h09
    python examples/kernelbench_under_test.py --evaluator cudal1 --device cpu --only h14_nan mutant/zeros

Needs `cudal1-env`. The evaluator is imported as `module:function` and called as KernelBench's
`eval_kernel_against_ref`; it must return an object with `correctness`, `runtime`, `ref_runtime` and `metadata`. Each
program is judged in a separate process. Programs that would harm a machine without a sandbox are skipped. The exit code
is 1 if an attack was rewarded, an incorrect program accepted or an honest one rejected.
"""

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.testing.child import ChildEvaluator
from cudal1_env.testing.under_test import MARGIN, Claim, EvaluatorUnderTest, JudgeUnderTest, examine, suite

KERNELBENCH = "kernelbench.eval:eval_kernel_against_ref"
JUDGE_ONE = "--judge-one"


def fail(sentence: str) -> NoReturn:
    """Print an error and exit with code 2, because 1 means that the evaluator is unsound."""
    print(sentence, file=sys.stderr)
    sys.exit(2)


def load(name: str) -> Any:
    """Import `module:function`, or exit with the reason in one sentence."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        fail(f"expected to import {name}, got: {error}; install that evaluator here, or name another with --evaluator")


def judge_one(name: str, task: Path, candidate: Path, claim: Path) -> None:
    """Judge one candidate with the evaluator `name`, in this process, and write its claim."""
    result = load(name)(task.read_text(), candidate.read_text(), num_correct_trials=5, measure_performance=True)
    if result is None:
        fail("expected a verdict, got None: the evaluator gave up")
    timed = result.correctness and result.runtime > 0 and result.ref_runtime > 0
    speedup = result.ref_runtime / result.runtime if timed else None
    verdict = Claim(correct=bool(result.correctness), speedup=speedup, message=str(result.metadata)[-500:])
    # Write to another file, then rename, so that a claim is never incomplete.
    claim.with_suffix(".part").write_text(verdict.model_dump_json())
    os.replace(claim.with_suffix(".part"), claim)


@contextlib.contextmanager
def under_test(options: argparse.Namespace) -> Iterator[tuple[EvaluatorUnderTest, float]]:
    """Yield the chosen evaluator, and the margin above 1 from which its claim counts as a reward."""
    if options.evaluator == "cudal1":
        with Judge(JudgeSettings(device=options.device)) as judge:
            yield JudgeUnderTest(judge), 0.0  # its claim is the reward
    else:
        load(options.evaluator)
        command = [sys.executable, str(Path(__file__).resolve()), JUDGE_ONE, options.evaluator]
        yield ChildEvaluator(command, timeout_s=options.timeout_s), MARGIN


def main() -> int:
    """Test the chosen evaluator with the suite and print its errors; return the exit code."""
    if sys.argv[1:2] == [JUDGE_ONE]:
        name, *paths = sys.argv[2:]
        judge_one(name, *map(Path, paths))
        return 0
    parser = argparse.ArgumentParser(description="Put an evaluator under cudal1's suite of attacks.")
    parser.add_argument("--evaluator", default=KERNELBENCH, help="module:function, or `cudal1` (default: KernelBench)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="where programs run (default cuda)")
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of names (default: all)")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="limit for one program (default 300)")
    options = parser.parse_args()
    cases = suite(options.device, only=options.only)
    if not cases:
        fail(f"expected a program whose name begins with one of {options.only}, found none")
    with under_test(options) as (evaluator, margin):
        report = examine(evaluator, cases, margin=margin, log=lambda text: print(text, file=sys.stderr, flush=True))
    print(report.text())
    return 0 if report.sound else 1


if __name__ == "__main__":
    sys.exit(main())
