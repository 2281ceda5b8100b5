"""The process that measures references: it reads one JSON line for each task and writes one with the measurements.

`cudal1_env.campaigns.scan` starts it with `python -m`. It is not a sandbox: it runs only references that the user
trusts, never candidates. Output that programs print goes to standard error.
"""

# pyright: basic
# torch tells few types.

from __future__ import annotations

import json
import math
import os
import sys
import time
import types
import warnings
from collections.abc import Sequence
from typing import Any

_DRAWS = 3
"""Number of input sets, to measure how much outputs vary between them."""
_CHANGED = 1e-3
"""Minimum change of an element that counts, as a share of the output's standard deviation."""
_IDLE = 0.005
"""An operator that changes a smaller share of its operand's elements is idle."""
_WATCHED = (
    *("abs", "relu", "clamp", "leaky_relu", "elu", "selu", "hardswish", "softshrink", "hardtanh"),
    *("maximum", "minimum", "clamp_min", "clamp_max"),
)
"""PyTorch's names of operators that may have no effect."""


def main() -> None:
    """Answer requests line by line until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("ignore")
    try:
        import torch
    except ImportError as error:
        answers.write(json.dumps({"missing": str(error)}) + "\n")
        return
    torch.set_num_threads(1)
    answers.write(json.dumps({"torch": str(torch.__version__)}) + "\n")
    answers.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = measured(asked["source"], asked["id"])
        except Exception as error:
            text = str(error).strip()
            answer = {"fault": f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def measured(source: str, name: str) -> dict[str, Any]:
    """Execute a reference and measure how its outputs depend on its inputs.

    Args:
        source: Program text. It is executed, so pass only trusted programs.
        name: Name of the program in tracebacks.

    Returns:
        finite: Whether all outputs are finite.
        spread: Standard deviation over root mean square, of the output with the smallest ratio.
        draws: The same ratio for each element across sets of inputs.
        inputs: For each input by name or position, `[share of the outputs that change, their change over the standard
            deviation]` when that input is redrawn.
        weights: The same for parameters.
        error: Median relative error of an element, against float64.
        idle: Operators that change almost nothing.
        ms: Milliseconds of one call.
    """
    import torch
    from cudal1_worker.oracle.distributions import non_default_state

    module = types.ModuleType("reference")
    exec(compile(source, name, "exec"), module.__dict__)
    sets: list[list[Any]] = []
    for seed in range(_DRAWS):
        torch.manual_seed(seed)
        sets.append(list(module.get_inputs()))
    torch.manual_seed(100)
    model = _model(module)
    names = {key for key, _ in model.named_parameters()}
    other = _model(module).state_dict()
    state = non_default_state(model.state_dict(), 1, parameters=names, other=other)
    fresh = non_default_state(state, 2, parameters=names, other=other)
    model.load_state_dict(state)
    watch = _watch()
    began = time.perf_counter()
    with torch.no_grad():
        first = _outputs(model, sets[0])
        took = time.perf_counter() - began
        with watch:
            _outputs(model, sets[0])
        others = [_outputs(model, one) for one in sets[1:]]
        found: dict[str, Any] = {
            "finite": all(bool(one.isfinite().all()) for one in first),
            "spread": min(_over(one.std(correction=0), _rms(one)) for one in first),
            "draws": min(_apart(torch.stack(same)) for same in zip(first, *others, strict=True)),
            "idle": sorted(watch.idle),
            "ms": round(1e3 * took, 2),
        }
        found["inputs"] = {
            str(place): _change(first, _outputs(model, [*sets[0][:place], sets[1][place], *sets[0][place + 1 :]]))
            for place, value in enumerate(sets[0])
            if isinstance(value, torch.Tensor)
        }
        found["weights"] = {}
        for key in sorted(names):
            model.load_state_dict({**state, key: fresh[key]})
            found["weights"][key] = _change(first, _outputs(model, sets[0]))
        found["error"] = _error(module, state, sets[0], first)
    return found


def _model(module: types.ModuleType) -> Any:
    arguments = module.get_init_inputs()
    return module.Model(**arguments) if isinstance(arguments, dict) else module.Model(*arguments)


def _outputs(model: Any, values: Sequence[Any]) -> list[Any]:
    import torch

    result = model(*(one.clone() if isinstance(one, torch.Tensor) else one for one in values))
    several = result if isinstance(result, tuple | list) else [result]
    return [one.detach().double().reshape(-1) for one in several if isinstance(one, torch.Tensor)]


def _rms(values: Any) -> float:
    return math.sqrt(float(values.square().mean())) if values.numel() else 0.0


def _over(one: Any, other: float) -> float:
    return round(float(one) / other, 6) if other > 0 else 0.0


def _apart(same: Any) -> float:
    """Return the standard deviation across sets over the root mean square, for the answers to several sets."""
    return _over(_rms(same.std(0)), _rms(same[0]))


def _change(before: Sequence[Any], after: Sequence[Any]) -> list[float]:
    """Return the share of changed elements and their change over the standard deviation, by the most changed output."""
    found: list[list[float]] = []
    for one, other in zip(before, after, strict=True):
        spread = float(one.std(correction=0)) or 1e-30
        apart = (one - other).abs()
        found.append([round(float((apart > _CHANGED * spread).double().mean()), 6), _over(_rms(apart), spread)])
    return max(found, key=lambda pair: pair[1])


def _error(module: types.ModuleType, state: dict[str, Any], values: Sequence[Any], got: Sequence[Any]) -> float:
    """Return the median relative error of an element against float64, for the output with the largest error."""
    import torch
    from cudal1_worker.oracle.models import as_dtype

    torch.manual_seed(100)
    wide = as_dtype(_model(module), torch.float64)
    wide.load_state_dict(state)
    torch.set_default_dtype(torch.float64)
    try:
        exact = _outputs(wide, as_dtype(list(values), torch.float64))
    finally:
        torch.set_default_dtype(torch.float32)
    found: list[float] = []
    for one, other in zip(got, exact, strict=True):
        some = other != 0
        found.append(float(((one - other).abs() / other.abs())[some].median()) if bool(some.any()) else 0.0)
    return float(f"{max(found):.3g}")


def _watch() -> Any:
    """Return a mode that compares the results of watched operators with their operands."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.idle: set[str] = set()

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = getattr(func, "__name__", "").rstrip("_")
            if name in _WATCHED and isinstance(result, torch.Tensor) and result.is_floating_point():
                for one in args:
                    if isinstance(one, torch.Tensor) and one.shape == result.shape and result.numel():
                        changed = (result - one).abs() > 1e-3 * one.abs().amax()
                        if float(changed.double().mean()) < _IDLE:
                            self.idle.add(name)
            return result

    return Watch()


if __name__ == "__main__":
    main()
