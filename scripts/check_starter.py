"""Check the starter suite: `python scripts/check_starter.py [NAME ...] [--time]`.

For each task, at its default and held-out CPU sizes and with weights that no constructor makes: the reference's
outputs are finite, vary, and depend on every input; every variant agrees with the float64 reference, has the
reference's state, and neither writes to its inputs nor returns them. `--time` prints single-thread medians.

This runs the bundled programs in this process: use it only for these tasks, never for a candidate's program.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from cudal1_data.sources.starter import STARTER_FOLDER, load_starter_task
from cudal1_data.task import Task, Variant

FLOAT32_EPS = torch.finfo(torch.float32).eps
REFERENCE_MULTIPLE = 8.0
"""Maximum error of a variant over the reference error."""
FLOOR_ULPS = 256.0
"""Error that is always allowed, in units in the last place of the output's root mean square.

A naive sequential float32 sum of n terms of random sign has an error of about 0.2 sqrt(n) such units (each step rounds
a partial sum of size sqrt(k)): 63 for n = 1e5, about four times that in the worst of many outputs. The error of TF32 is
thousands.
"""

Inputs = list[torch.Tensor]


class CheckError(AssertionError):
    """A starter task that breaks a rule; the message says which program and where."""


def namespace(source: str, where: str) -> dict[str, Any]:
    """Run a bundled program and return its names."""
    names: dict[str, Any] = {"__name__": "starter_program"}
    exec(compile(source, where, "exec"), names)
    return names


def make_inputs(names: Mapping[str, Any], seed: int) -> Inputs:
    """Draw one set of inputs."""
    torch.manual_seed(seed)
    return list(names["get_inputs"]())


def make_state(model: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Return weights that differ from every constructor's, including scales, biases and running statistics."""
    draw = torch.Generator().manual_seed(seed)
    state: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        kind = value.dtype
        if value.is_floating_point():
            value = value * (0.5 + torch.rand(value.shape, generator=draw))
            if value.ndim <= 1:
                value = value + 0.2 * torch.rand(value.shape, generator=draw)
        state[name] = value.to(kind, copy=True)
    return state


def call(model: torch.nn.Module, inputs: Sequence[torch.Tensor], who: str) -> list[torch.Tensor]:
    """Call a model; check that it neither changed its inputs nor returned one."""
    before = [value.clone() for value in inputs]
    with torch.no_grad():
        answer = model(*inputs)
    outputs = [answer] if isinstance(answer, torch.Tensor) else list(answer)
    for position, (old, new) in enumerate(zip(before, inputs, strict=True)):
        if not torch.equal(old, new):
            raise CheckError(f"{who}: writes to input {position}")
    storages = {value.untyped_storage().data_ptr() for value in inputs}
    for position, output in enumerate(outputs):
        if output.untyped_storage().data_ptr() in storages:
            raise CheckError(f"{who}: output {position} shares memory with an input")
    return [output.clone() for output in outputs]


def widen(values: Sequence[torch.Tensor]) -> Inputs:
    """Convert floating-point tensors to float64."""
    return [value.double() if value.is_floating_point() else value for value in values]


def error_of(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest difference over the answer's root mean square; not finite if an element is not."""
    scale = want.double().square().mean().sqrt().item() or 1.0
    return (got.double() - want.double()).abs().max().item() / scale


def check_informative(who: str, answers: Sequence[torch.Tensor]) -> None:
    """Check that outputs are finite and neither near zero nor nearly constant."""
    for position, answer in enumerate(answers):
        if not answer.isfinite().all():
            raise CheckError(f"{who}: output {position} is not finite")
        largest = answer.double().abs().max().item()
        if largest < 1e-3:
            raise CheckError(f"{who}: output {position} is near zero (largest {largest:.1e})")
        if answer.numel() > 1 and answer.double().std().item() < 1e-3 * largest:
            raise CheckError(f"{who}: output {position} is nearly constant")


def check_depends(who: str, run: Callable[[Inputs], Inputs], names: Mapping[str, Any], inputs: Inputs) -> None:
    """Check that the answer changes when any single input is replaced with another draw."""
    answers = run(inputs)
    others = make_inputs(names, seed=99)
    for position in range(len(inputs)):
        changed = [*inputs[:position], others[position], *inputs[position + 1 :]]
        differences = [error_of(got, want) for got, want in zip(run(changed), answers, strict=True)]
        if max(differences) < 1e-2:
            raise CheckError(f"{who}: the answer does not depend on input {position}")


def check_close(who: str, got: Inputs, want: Inputs, plain: Inputs) -> None:
    """Check outputs (or states) against float64 answers, relative to the error of the float32 reference."""
    if len(got) != len(want):
        raise CheckError(f"{who}: expected {len(want)} outputs, got {len(got)}")
    for position, (mine, exact, ours) in enumerate(zip(got, want, plain, strict=True)):
        if mine.shape != ours.shape or mine.dtype != ours.dtype:
            raise CheckError(
                f"{who}: output {position}: expected {tuple(ours.shape)} {ours.dtype}, "
                f"got {tuple(mine.shape)} {mine.dtype}"
            )
        allowed = max(REFERENCE_MULTIPLE * error_of(ours, exact), FLOOR_ULPS * FLOAT32_EPS)
        error = error_of(mine, exact)
        if not error <= allowed:
            raise CheckError(f"{who}: output {position}: error {error:.2e} of the scale, allowed {allowed:.2e}")


def check_size(task: Task, variants: Mapping[str, Mapping[str, Any]]) -> None:
    """Check the reference and its variants at one size, with two sets of inputs each."""
    names = namespace(task.source, task.id)
    init = names["get_init_inputs"]()
    torch.manual_seed(0)
    reference = names["Model"](*init)
    exact_model = names["Model"](*init).double()
    state = make_state(reference, seed=1)
    reference.load_state_dict(state)
    exact_model.load_state_dict(state)
    draws = [make_inputs(names, seed) for seed in (2, 3)]
    answers = [call(exact_model, widen(inputs), f"{task.id} (float64)") for inputs in draws]
    plain = [call(reference, inputs, task.id) for inputs in draws]
    check_informative(task.id, answers[0])
    for position, output in enumerate(plain[0]):
        if torch.allclose(output.double(), plain[1][position].double(), rtol=1e-3):
            raise CheckError(f"{task.id}: output {position} is the same for other inputs")
    state_answers, state_plain = (list(model.state_dict().values()) for model in (exact_model, reference))
    check_depends(task.id, lambda values: call(exact_model, widen(values), task.id), names, draws[0])
    for name, program in variants.items():
        who = f"{task.id}, variant {name}"
        model = program["ModelNew"](*init)
        shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
        if shapes != {key: tuple(value.shape) for key, value in state.items()}:
            raise CheckError(f"{who}: expected the reference's state, got {shapes}")
        model.load_state_dict(state)
        for inputs, want, ours in zip(draws, answers, plain, strict=True):
            check_close(who, call(model, inputs, who), want, ours)
        if state:
            check_close(f"{who}, state after the calls", list(model.state_dict().values()), state_answers, state_plain)


def check_task(task: Task, *, compiler: bool) -> None:
    """Check one task at all of its CPU sizes.

    Args:
        task: A starter task that declares sizes for `cpu`.
        compiler: Whether to check variants that need a C compiler.

    Raises:
        CheckError: A rule is broken.
    """
    if len(task.variants) < 3:
        raise CheckError(f"{task.id}: expected at least 3 variants, got {len(task.variants)}")
    names = namespace(task.source, task.id)
    draw, again = (make_inputs(names, seed=5) for _ in range(2))
    if not all(torch.equal(a, b) for a, b in zip(draw, again, strict=True)):
        raise CheckError(f"{task.id}: inputs do not follow the seed")
    programs = {
        variant.name: namespace(variant.source, f"{task.id}/{variant.name}") for variant in runnable(task, compiler)
    }
    check_subnormals(task.id)
    for sized in (task.on("cpu"), *task.held_out("cpu")):
        check_size(sized, programs)


def check_subnormals(who: str) -> None:
    """Check that loading the programs did not make the processor flush subnormal numbers to zero."""
    smallest = sys.float_info.min
    if smallest / 2 == 0.0:
        torch.set_flush_denormal(False)
        raise CheckError(
            f"{who}: a library it loads flushes subnormal numbers to zero in the whole process; "
            "add -nostartfiles to gcc's flags wherever -ffast-math stands"
        )


def runnable(task: Task, compiler: bool) -> list[Variant]:
    """Return the variants that run on this CPU."""
    return [v for v in task.variants if "cpu" in v.devices and (compiler or "compiler" not in v.needs)]


def time_task(task: Task, *, compiler: bool, rounds: int = 15, sets: int = 4) -> dict[str, float]:
    """Return the median milliseconds of a call by program, rounds interleaved, at the CPU's default size.

    Args:
        task: The task.
        compiler: Whether to time variants that need a C compiler.
        rounds: Timings of each program.
        sets: Sets of inputs to rotate.
    """
    names = namespace(task.on("cpu").source, task.id)
    init = names["get_init_inputs"]()
    models = {"reference": names["Model"](*init)}
    for variant in runnable(task, compiler):
        models[variant.name] = namespace(variant.source, f"{task.id}/{variant.name}")["ModelNew"](*init)
    draws = [make_inputs(names, seed) for seed in range(sets)]
    times_ms: dict[str, list[float]] = {name: [] for name in models}
    with torch.no_grad():
        for number in range(rounds + 2):
            inputs = draws[number % sets]
            for name, model in models.items():
                start = time.perf_counter()
                model(*inputs)
                times_ms[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values[2:]) for name, values in times_ms.items()}


def main() -> int:
    """Check the named tasks, or all; return the number of those that fail."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="folders under starter/ (all by default)")
    parser.add_argument("--time", action="store_true", help="print single-thread medians, in milliseconds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    compiler = shutil.which("gcc") is not None
    folders = sorted(path for path in STARTER_FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__")
    chosen = arguments.names or [path.name for path in folders]
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        # Variants that compile write their build to this process's temporary folder.
        tempfile.tempdir = scratch
        for name in chosen:
            try:
                task = load_starter_task(STARTER_FOLDER / name)
                check_task(task, compiler=compiler)
            except Exception as error:  # noqa: BLE001 - a program may raise anything
                failures += 1
                print(f"FAIL {name}: {type(error).__name__}: {error}")
                continue
            print(f"ok   {name} ({task.split}, {len(task.variants)} variants)")
            if arguments.time:
                times_ms = time_task(task, compiler=compiler)
                for program, value in times_ms.items():
                    print(f"     {program:24s} {value:8.3f} ms  {times_ms['reference'] / value:7.2f} x")
    return min(failures, 100)


if __name__ == "__main__":
    sys.exit(main())
