"""A candidate against its reference in one trusted process: the speedup of a program that does not cheat.

    python benchmarks/plain_loop.py REFERENCE CANDIDATE [--device cuda] [--calls 60]

Calls do not overlap: each one's inputs are copied to a fixed address, the device is synchronized, then the clock runs
over the call and a synchronization. The median of an empty call (on a GPU the smallest kernel) is subtracted. Arms run
in random order. Prints a JSON object: medians in milliseconds, and the ratio. Both programs run without a sandbox: use
it only for programs that you trust.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_SETS = 8
_WARM = 12


def plain_ratio(reference: Path, candidate: Path, device: str, *, timeout_s: float = 120.0) -> dict[str, float] | None:
    """Measure in a separate process; return None if it fails."""
    command = [sys.executable, __file__, str(reference), str(candidate), "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def module_of(path: Path, name: str) -> Any:
    """Import a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def measured(reference: Path, candidate: Path, device: str, calls: int) -> dict[str, float]:
    """Measure both programs."""
    task = module_of(reference, "task")
    other = module_of(candidate, "candidate")
    models = [built(maker, task, device) for maker in (task.Model, other.ModelNew)]
    names = [list(model.state_dict()) for model in models]
    if sorted(names[0]) == sorted(names[1]):
        models[1].load_state_dict(models[0].state_dict())
    sets = [[moved(value, device) for value in task.get_inputs()] for _ in range(_SETS)]
    fixed = [value.clone() if isinstance(value, torch.Tensor) else value for value in sets[0]]
    dummy = torch.zeros(1, device=device)
    arms: list[Callable[[], Any]] = [
        lambda: models[0](*fixed),
        lambda: models[1](*fixed),
        lambda: dummy.add_(1) if device == "cuda" else None,
    ]
    times: list[list[float]] = [[], [], []]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    with torch.no_grad():
        for number in range(_WARM + calls):
            for arm in random.sample(range(3), 3):
                for target, source in zip(fixed, sets[(number + arm) % _SETS], strict=True):
                    if isinstance(target, torch.Tensor):
                        target.copy_(source)
                wait()
                began = time.perf_counter()
                kept = arms[arm]()
                wait()
                if number >= _WARM:
                    times[arm].append(1e3 * (time.perf_counter() - began))
                del kept
    reference_ms, candidate_ms, empty_ms = (statistics.median(one) for one in times)
    return {
        "reference_ms": reference_ms - empty_ms,
        "candidate_ms": candidate_ms - empty_ms,
        "ratio": (reference_ms - empty_ms) / max(candidate_ms - empty_ms, 1e-6),
    }


def built(maker: Any, task: Any, device: str) -> Any:
    """Make a model under a seed."""
    torch.manual_seed(0)
    arguments = task.get_init_inputs()
    return (maker(**arguments) if isinstance(arguments, dict) else maker(*arguments)).to(device)


def moved(value: Any, device: str) -> Any:
    """Return an input on the device."""
    return value.to(device) if isinstance(value, torch.Tensor) else value


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=Path)
    parser.add_argument("candidate", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--calls", type=int, default=60)
    options = parser.parse_args()
    print(json.dumps(measured(options.reference, options.candidate, options.device, options.calls)))


if __name__ == "__main__":
    main()
