"""The process that tests or times a drop-in: `python -m cudal1_agent.optimize.dropin_child FOLDER test`.

`test` also describes its outputs; `time SECONDS` in its place measures it.

It is an ordinary process with all threads of torch, like the user's. Original and drop-in hold the same weights and are
called in pairs, in random order, on inputs drawn for each pair.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

MIN_PAIRS = 8
MAX_PAIRS = 60
_WARMUP = 3


def tests_of(module: ModuleType) -> list[str]:
    """Run the tests of a drop-in; return their names.

    Raises:
        AssertionError: A test failed; its name is in the message.
    """
    names = [name for name in vars(module) if name.startswith("test_")]
    for name in names:
        try:
            getattr(module, name)()
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    return names


def _timed_ms(module: Any, inputs: list[Any], device: str) -> float:
    began = time.perf_counter()
    module(*inputs)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def _pairs(tests: ModuleType, device: str, seconds: float) -> list[tuple[float, float]]:
    first, second = tests._made()
    pairs: list[tuple[float, float]] = []
    order = random.Random()
    with torch.no_grad():
        for seed in range(_WARMUP):
            for module in (first, second):
                _timed_ms(module, tests._inputs(seed), device)
        ends = time.monotonic() + seconds
        while len(pairs) < MIN_PAIRS or (len(pairs) < MAX_PAIRS and time.monotonic() < ends):
            inputs = tests._inputs(order.getrandbits(30))
            if device == "cuda":
                torch.cuda.synchronize()
            if order.random() < 0.5:
                original = _timed_ms(first, inputs, device)
                pairs.append((original, _timed_ms(second, inputs, device)))
            else:
                dropin = _timed_ms(second, inputs, device)
                pairs.append((_timed_ms(first, inputs, device), dropin))
    return pairs


def _described(tests: ModuleType) -> dict[str, Any]:
    """Return the strides of the kernel's outputs, and whether its next call writes into them."""
    _, second = tests._shared()
    before = tests._outputs(second, tests._inputs(1))
    after = tests._outputs(second, tests._inputs(2))
    places = {one.untyped_storage().data_ptr() for one in before}
    return {
        "strides": [list(one.stride()) for one in before],
        "reused": any(one.untyped_storage().data_ptr() in places for one in after),
    }


def _found(folder: Path, what: str, seconds: float) -> dict[str, Any]:
    sys.path.insert(0, str(folder.parent))
    tests = importlib.import_module(f"{folder.name}.test_dropin")
    spec = importlib.import_module(f"{folder.name}.guard").SPEC
    if what == "test":
        looks = _described(tests)
        spec["clones"] = looks["reused"]
        for form, stride in zip(spec["outputs"], looks["strides"], strict=True):
            form["stride"] = stride
        return looks | {"tests": tests_of(tests)}
    return {"pairs": _pairs(tests, spec["device"], seconds), "threads": torch.get_num_threads()}


def main() -> None:
    """Test or time the drop-in; print the result as JSON in the last line of standard output."""
    folder, what = Path(sys.argv[1]).resolve(), sys.argv[2]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    try:
        found = _found(folder, what, seconds)
    except Exception as error:  # noqa: BLE001 - after any error there is no drop-in
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
