"""Check generated tasks on the CPU: `python scripts/check_generated.py [SPEC ...] [--count 10] [--out FILE.jsonl]`.

Each task runs in a child process, at its CPU size, on one thread, with weights that no constructor makes. Its outputs
must be finite, the same each time, not nearly constant, share no memory with an input, depend on every input and
every weight, and agree with float64; a call must take 1 to 20 ms. Without SPEC all families are checked, `--count`
tasks of each, forward and backward. One JSON line for each task goes to FILE. With `--sizes cuda` tasks have their GPU
size, still on the CPU, and only outputs and their errors are looked at: sums of a hundred thousand terms and the far
ends of millions of values are not seen at the small size.

This runs programs that this package wrote: it is for our own tasks, never for a candidate's program.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from check_starter import call, make_inputs, make_state, namespace, widen
from cudal1_data import Task, load_suite
from cudal1_data.generator import FAMILIES
from cudal1_data.generator.families import FORWARD_ONLY

LEAST_SPREAD = 0.03
"""Standard deviation of an output over its root mean square."""
LEAST_EFFECT = {"input": 0.05, "weight": 0.003}
"""Change of some output over its standard deviation, when one input or weight is drawn anew. PyTorch's own layers
begin with small biases."""
MOST_ERROR = 1e-5
"""Float32 error over the output's largest magnitude: at most a thirtieth of what the task gate must tell apart."""
MOST_ROUNDINGS = 8
"""The same for outputs of half precision, in units of their last place."""
LEAST_MS, MOST_MS = 1.0, 20.0


def main() -> int:
    """Check, print the faults, write the record; returns 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specs", nargs="*")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help="check in this process")
    options = parser.parse_args()
    specs = options.specs or [
        f"generated:{family}?n={options.count}&seed={options.seed}&backward={backward}"
        for family in FAMILIES
        for backward in ((0,) if family in FORWARD_ONLY else (0, 1))
    ]
    if options.child:
        torch.set_num_threads(1)
        for spec in specs:
            for task in load_suite(spec, device=options.sizes):
                print(json.dumps(checked(task, options.sizes)), flush=True)
        return 0
    lines = list(in_children(specs, options.sizes))
    if options.out:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    faulty = [line for line in lines if line["faults"]]
    for line in faulty:
        print(f"{line['task']}: {'; '.join(line['faults'])}")
    print(f"{len(lines)} tasks, {len(faulty)} with faults")
    if times := sorted(line["ms"] for line in lines if line["ms"] is not None):
        print(f"ms: least {times[0]:.2f}, median {statistics.median(times):.2f}, most {times[-1]:.2f}")
    return 1 if faulty else 0


def in_children(specs: list[str], sizes: str) -> Iterator[dict[str, Any]]:
    """Check each suite in a process of its own."""
    for spec in specs:
        command = [sys.executable, __file__, "--child", spec, "--sizes", sizes]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [json.loads(text) for text in done.stdout.splitlines()]
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            lines.append({"task": spec, "ms": None, "faults": [f"the process ended with {done.returncode}: {reason}"]})
        faults = sum(bool(line["faults"]) for line in lines)
        print(f"{spec}: {len(lines)} tasks, {faults} with faults", file=sys.stderr, flush=True)
        yield from lines


def checked(task: Task, sizes: str = "cpu") -> dict[str, Any]:
    """Check one task; at a GPU's sizes its outputs only."""
    line: dict[str, Any] = {"task": task.id, "ms": None, "faults": []}
    try:
        line.update(measured(task, whole=sizes == "cpu"))
    except Exception as error:  # noqa: BLE001  any exception is a fault of the task; the next one is checked too
        return {**line, "faults": [f"{type(error).__name__}: {error}"[:300]]}
    faults = line["faults"]
    if not line["finite"]:
        faults.append("not finite")
    if line["spread"] < LEAST_SPREAD:
        faults.append(f"nearly constant: spread {line['spread']:.1e} of the root mean square")
    if not line["error"] <= MOST_ERROR:
        faults.append(f"ill-conditioned: error {line['error']:.1e}")
    if sizes != "cpu":
        return line
    if not line["same"]:
        faults.append("another answer the second time")
    for kind, (effect, name) in line["effects"].items():
        if effect < LEAST_EFFECT[kind]:
            faults.append(f"hardly depends on {kind} {name}: effect {effect:.1e}")
    if not LEAST_MS <= line["ms"] <= MOST_MS:
        faults.append(f"takes {line['ms']:.2f} ms")
    return line


def measured(task: Task, *, whole: bool = True) -> dict[str, Any]:
    """Run a task and measure what is checked; without `whole`, what one call tells."""
    names = namespace(task.source, task.id)
    torch.manual_seed(0)
    model = names["Model"](*names["get_init_inputs"]())
    wide = names["Model"](*names["get_init_inputs"]()).double()
    state = make_state(model, seed=1)
    model.load_state_dict(state)
    wide.load_state_dict(state)
    inputs = make_inputs(names, 2)
    answers = call(model, inputs, task.id)
    torch.set_default_dtype(torch.float64)  # as the judge's oracle does
    try:
        exact = call(wide, widen(inputs), task.id)
    finally:
        torch.set_default_dtype(torch.float32)
    once = {
        "finite": all(bool(out.isfinite().all()) for out in answers),
        "spread": min(map(spread, answers)),
        "error": max(map(error_of_output, answers, exact)),
    }
    if not whole:
        return once
    again = call(model, inputs, task.id)
    return {
        **once,
        "same": all(torch.equal(one, other) for one, other in zip(answers, again, strict=True)),
        "effects": min_effects(names, model, state, inputs, answers),
        "ms": milliseconds(model, inputs),
    }


def error_of_output(answer: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest error over the largest magnitude, in half precision as if it were float32's with as many roundings."""
    error = float((answer.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-30))
    if answer.dtype in (torch.bfloat16, torch.float16):
        return error * MOST_ERROR / (MOST_ROUNDINGS * torch.finfo(answer.dtype).eps)
    return error


def min_effects(
    names: dict[str, Any],
    model: torch.nn.Module,
    state: dict[str, torch.Tensor],
    inputs: list[torch.Tensor],
    answers: list[torch.Tensor],
) -> dict[str, tuple[float, str]]:
    """Return the least change that drawing one input or weight anew makes, over the standard deviation, and which."""
    effects: dict[str, dict[str, float]] = {"input": {}, "weight": {}}
    others = make_inputs(names, 3)
    for place in range(len(inputs)):
        changed = [*inputs[:place], others[place], *inputs[place + 1 :]]
        effects["input"][str(place)] = change(call(model, changed, "changed"), answers)
    torch.manual_seed(4)
    fresh = make_state(names["Model"](*names["get_init_inputs"]()), seed=5)
    for name in dict(model.named_parameters()):
        model.load_state_dict({**state, name: fresh[name]})
        effects["weight"][name] = change(call(model, inputs, "changed"), answers)
    model.load_state_dict(state)
    return {kind: min((effect, name) for name, effect in found.items()) for kind, found in effects.items() if found}


def change(after: list[torch.Tensor], before: list[torch.Tensor]) -> float:
    """Change that one element in a hundred exceeds, over the output's standard deviation, of the best output."""
    effects: list[float] = []
    for one, other in zip(after, before, strict=True):
        size = (one.double() - other.double()).abs().flatten().sort().values
        effects.append(float(size[int(0.99 * (len(size) - 1))] / (other.double().std(correction=0) + 1e-30)))
    return max(effects)


def spread(output: torch.Tensor) -> float:
    """Standard deviation over the root mean square."""
    return float(output.double().std(correction=0) / (output.double().square().mean().sqrt() + 1e-30))


def milliseconds(model: torch.nn.Module, inputs: list[torch.Tensor]) -> float:
    """Median of seven calls."""
    seconds: list[float] = []
    with torch.no_grad():
        for _ in range(7):
            began = time.perf_counter()
            model(*inputs)
            seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
