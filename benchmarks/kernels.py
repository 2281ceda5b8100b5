"""Speed of the templates' best kernels over eager, `torch.compile` and the roofline, by family. Needs a GPU.

    uv run benchmarks/kernels.py kernels.jsonl --budget-s 480

The same command resumes an interrupted run. `--part K/N` measures every N-th task, and `--join` copies other parts'
lines. Several parts may run on one GPU: each takes times under the GPU's lease, and compiles beside the others. Each
line is one program of a task, compared with the reference and timed with CUDA events; the last is the summary. The
roofline is the larger of two times: bytes of inputs, parameters, buffers and outputs over the bandwidth of a copy, and
operations over the rate of a large product, both measured at the start. Programs come from the templates, so they run
in this process, without a judge.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch
from cudal1_data import Task, load_suite
from cudal1_data.corpus.build import render
from cudal1_data.hashes import digest
from cudal1_data.techniques import Backend
from cudal1_env.campaigns.parts import part_of
from cudal1_env.judge.workers.lease import lease
from parts import add_options, results
from torch.utils.flop_counter import FlopCounterMode

BACKENDS: tuple[Backend, ...] = ("triton", "cuda-nvrtc")
HALF = (torch.float16, torch.bfloat16)
TOLERANCE = 2e-2
"""Maximum error over the scale of the answer, unless the reference's own is larger. The judge is stricter."""


def ideal_ms(count_bytes: int, operations: int, *, bytes_per_ms: float, operations_per_ms: float) -> float:
    """Return the roofline in milliseconds.

    >>> ideal_ms(3_000_000, 10, bytes_per_ms=1e6, operations_per_ms=1e3)
    3.0
    """
    return max(count_bytes / bytes_per_ms, operations / operations_per_ms)


def sampled(tasks: Iterable[Task], per_family: int) -> list[Task]:
    """Return up to `per_family` tasks of each family, alternating between families."""
    families: dict[str, list[Task]] = {}
    for task in tasks:
        families.setdefault(task.category, []).append(task)
    rounds = [[line[turn] for line in families.values() if len(line) > turn] for turn in range(per_family)]
    return [task for one in rounds for task in one]


def time_ms(call: Callable[[], object], device: str, *, repeats: int = 20) -> float:
    """Return the median milliseconds of a call; on a GPU under its lease, with the L2 cache cleared before each."""
    for _ in range(3):
        call()
    if device == "cpu":
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)
    flushed = torch.empty(1 << 26, dtype=torch.int32, device=device)
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    torch.cuda.synchronize()
    with alone():
        for start, end in pairs:
            flushed.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def alone() -> AbstractContextManager[object]:
    """Hold the GPU as a judge does, so that judges and other parts of this benchmark leave it alone."""
    return lease(f"gpu-{torch.cuda.get_device_properties(0).uuid}") if torch.cuda.is_available() else nullcontext()


def rates(device: str) -> dict[str, float]:
    """Measure the bandwidth of a copy and the rate of a product in float32, and in bfloat16 on a GPU."""
    size = 1 << 28 if device == "cuda" else 1 << 20
    x = torch.empty(size, device=device)
    y = torch.empty_like(x)
    found = {"bytes_per_ms": 2 * x.nbytes / time_ms(lambda: y.copy_(x), device)}
    for dtype in (torch.float32, torch.bfloat16) if device == "cuda" else (torch.float32,):
        side = 8192 if device == "cuda" else 256
        a = torch.randn(side, side, device=device, dtype=dtype)
        found[str(dtype).removeprefix("torch.")] = 2 * side**3 / time_ms(lambda a=a: a @ a, device)
    return found


def loaded(text: str, folder: Path) -> ModuleType:
    """Import a program from a file, because Triton reads kernels from their file."""
    path = folder / f"program_{digest(text)[:16]}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensors(value: object) -> list[torch.Tensor]:
    """Return a tensor, or the tensors of a tuple or list, as a list."""
    several = value if isinstance(value, tuple | list) else (value,)
    return [one for one in several if isinstance(one, torch.Tensor)]


def in_float32(model: torch.nn.Module, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Return the answers with inputs, parameters and buffers of half precision in float32."""
    wide = copy.deepcopy(model).float()
    values = [one.float() if isinstance(one, torch.Tensor) and one.dtype in HALF else one for one in inputs]
    return tensors(wide(*values))


def error_of(wanted: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> float:
    """Return the largest error of an element over the largest magnitude of its answer.

    >>> error_of([torch.tensor([1.0, 4.0])], [torch.tensor([1.0, 3.0])])
    0.25
    """
    return max(
        float((one.float() - other.float()).abs().max() / one.float().abs().max().clamp_min(1e-30))
        for one, other in zip(wanted, got, strict=True)
    )


def measure(
    task: Task, programs: int, known: set[str], machine: dict[str, float], device: str, backends: Sequence[Backend]
) -> Iterable[dict[str, Any]]:
    """Yield a task's lines that are not known yet: its reference first, then programs. Without programs, yield none."""
    pairs = (pair for pair in render(task, 0, backends=backends) if device == "cuda" or not pair.needs_gpu)
    if not (chosen := list(islice(pairs, programs))):
        return
    with TemporaryDirectory() as folder, torch.no_grad():
        given = loaded(task.source, Path(folder))
        torch.manual_seed(0)
        model = given.Model(*given.get_init_inputs()).to(device)
        with torch.device(device):
            inputs = [one.to(device) if isinstance(one, torch.Tensor) else one for one in given.get_inputs()]
        with FlopCounterMode(display=False) as counter:
            own = tensors(model(*inputs))
        half = any(one.dtype in HALF for one in tensors(inputs))
        wanted = in_float32(model, inputs) if half else own
        count_bytes = sum(one.nbytes for one in (*tensors(inputs), *model.parameters(), *model.buffers(), *own))
        ideal = ideal_ms(
            count_bytes,
            counter.get_total_flops(),
            bytes_per_ms=machine["bytes_per_ms"],
            operations_per_ms=machine.get("bfloat16" if half else "float32", machine["float32"]),
        )
        head = {"task": task.id, "family": task.category}
        if f"{task.id} eager" not in known:
            line = {"kind": "reference", "key": f"{task.id} eager", **head, "ideal_ms": ideal}
            line |= {"error": error_of(wanted, own), "eager_ms": time_ms(lambda: model(*inputs), device)}
            compiled = torch.compile(model) if device == "cuda" else model
            try:
                line |= {"compile_ms": time_ms(lambda: compiled(*inputs), device)}
            except Exception as failure:  # noqa: BLE001  # Inductor does not compile every reference
                line |= {"compile_ms": None, "failed": f"{type(failure).__name__}: {str(failure)[:300]}"}
            yield line
        for pair in chosen:
            key = f"{task.id} {pair.source_sha256}"
            if key in known:
                continue
            line = {
                "kind": "program",
                "key": key,
                **head,
                "backend": pair.backend,
                "template": pair.template,
                "parameters": pair.parameters,
            }
            try:
                made = loaded(pair.source, Path(folder))
                new = made.ModelNew(*given.get_init_inputs()).to(device)
                new.load_state_dict(model.state_dict())
                got = tensors(new(*inputs))
                line |= {"error": error_of(wanted, got), "ms": time_ms(lambda new=new: new(*inputs), device)}
            except Exception as failure:  # noqa: BLE001  # a finding; other programs continue
                line |= {"failed": f"{type(failure).__name__}: {str(failure)[:300]}"}
            yield line


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return medians of the best correct programs by family, and the shares of references that they beat.

    Medians are over eager, over `torch.compile`, and of the roofline.
    """
    references = {line["task"]: line for line in lines if line["kind"] == "reference"}
    best: dict[str, dict[str, Any]] = {}
    backends: dict[str, set[str]] = {}
    broken = 0
    for line in lines:
        if line["kind"] != "program" or line["task"] not in references:
            continue
        if "failed" in line or not line["error"] <= max(TOLERANCE, references[line["task"]]["error"]):
            broken += 1
            continue
        backends.setdefault(line["task"], set()).add(line["backend"])
        if line["task"] not in best or line["ms"] < best[line["task"]]["ms"]:
            best[line["task"]] = line
    rows: dict[str, list[dict[str, float]]] = {}
    for task, line in best.items():
        times = {name: references[task][f"{name}_ms"] for name in ("eager", "compile", "ideal")}
        ratios = {name: time / line["ms"] for name, time in times.items() if time is not None}
        rows.setdefault(line["family"], []).append(ratios)
    names = {"eager": "over_eager", "compile": "over_compile", "ideal": "of_roofline"}
    families = {
        family: {"tasks": len(some)} | {names[name]: median_of(some, name) for name in names}
        for family, some in sorted(rows.items())
    }
    whole = [row for some in rows.values() for row in some]
    return {
        "programs": sum(line["kind"] == "program" for line in lines),
        "broken": broken,
        "references": len(references),
        "with_a_correct_program": len(best),
        "in_two_backends": sum(len(some) > 1 for some in backends.values()),
        "eager_beaten_by_1.2": sum(row["eager"] >= 1.2 for row in whole),
        "compile_beaten": sum(row.get("compile", 0) > 1 for row in whole),
        "of_roofline": median_of(whole, "ideal"),
        "families": families,
    }


def median_of(rows: Sequence[dict[str, float]], name: str) -> float | None:
    """Return the median of a ratio, to three digits; None if no row has it."""
    found = [row[name] for row in rows if name in row]
    return round(statistics.median(found), 3) if found else None


def main() -> None:
    """Measure the missing lines, then summarise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--suite", default="generated?n=160&seed=0")
    parser.add_argument("--per-family", type=int, default=3)
    parser.add_argument("--programs", type=int, default=10, help="programs of a task")
    parser.add_argument("--budget-s", type=float, default=480.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    add_options(parser)
    given = parser.parse_args()
    file = results(given.out, join=given.join)
    if not given.join:
        for line in measured(given, file.lines):
            file.add(line)
    print(json.dumps(file.add({"kind": "summary", **summary(file.lines)}), indent=1))


def measured(given: argparse.Namespace, before: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a line for the machine and one for each program, except those of an earlier run, until the budget ends."""
    backends: tuple[Backend, ...] = BACKENDS if given.device == "cuda" else ("pytorch",)
    end = time.monotonic() + given.budget_s
    known = {line["key"] for line in before if "key" in line}
    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    machine = rates(given.device)
    yield {"kind": "machine", "name": name, "torch": torch.__version__, **machine}
    tasks = sampled(load_suite(given.suite, device=given.device), given.per_family)
    for task in part_of(tasks, given.part):
        for line in measure(task, given.programs, known, machine, given.device, backends):
            yield line
            if time.monotonic() > end:
                return
        gc.collect()
        if given.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
