"""The process that calls a user's module: `python -m cudal1_agent.optimize.examine_child FILE DEVICE`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cudal1_agent.optimize.loading import configuration_of, load_file, returned

_REPEATS = 20
_IN_A_ROW = {"cpu": 1, "cuda": 10}
_SIDE = {"cpu": 768, "cuda": 4096}
"""Rows and columns of the matrices whose product measures the rate of arithmetic, by device."""
_FEW = 16_384
"""Elements whose exponentials measure the rate of functions; they fit into a core's cache."""
_TRANSCENDENTAL = frozenset(
    [
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "tanh"),
        *("erf", "erfc", "sin", "cos", "tan", "asin", "acos", "atan", "pow"),
        *("rsqrt", "silu", "gelu", "mish", "softplus", "elu", "selu", "log_sigmoid_forward", "_softmax"),
        "_log_softmax",
    ]
)
"""Operators that compute an exponential, a logarithm or the like for each element."""


class _Unfit(Exception):
    """Reason why a module cannot be optimised."""


def _form(value: torch.Tensor) -> dict[str, Any]:
    return {
        "shape": list(value.shape),
        "dtype": str(value.dtype).removeprefix("torch."),
        "stride": list(value.stride()),
    }


def _inputs(module: Any, device: str) -> list[Any]:
    values = module.get_inputs()
    if not isinstance(values, list | tuple):
        raise _Unfit(f"its inputs come as {type(values).__name__}; return them in a list")
    for place, value in enumerate(values):
        if not isinstance(value, torch.Tensor | bool | int | float | str | None):
            raise _Unfit(f"input {place} is of type {type(value).__name__}; give tensors and plain values")
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if not tensors:
        raise _Unfit("none of its inputs is a tensor")
    _check_device(tensors, "an input", device)
    return [value.to(device) if isinstance(value, torch.Tensor) else value for value in values]


def _check_device(tensors: list[torch.Tensor], what: str, device: str) -> None:
    for one in tensors:
        if one.device.type not in ("cpu", device):
            raise _Unfit(
                f"{what} lies on {one.device}, but --device is {device}; make it on the CPU, or change --device"
            )


def _outputs(value: Any, device: str) -> list[torch.Tensor]:
    outputs = [value] if isinstance(value, torch.Tensor) else value
    if not isinstance(outputs, list | tuple) or not outputs or not all(isinstance(o, torch.Tensor) for o in outputs):
        raise _Unfit(f"forward returns {type(value).__name__}; return a tensor, or a list or tuple of tensors")
    if any(one.device.type != device for one in outputs):
        raise _Unfit(f"an output lies on {outputs[0].device}, but --device is {device}")
    return list(outputs)


def _same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(one, other, strict=True)
    )


def _close(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Return whether outputs agree up to the order of summation."""
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def _call(model: torch.nn.Module, inputs: list[Any], device: str) -> list[torch.Tensor]:
    with torch.no_grad():
        return [one.clone() for one in _outputs(model(*inputs), device)]


def _check_calls(model: torch.nn.Module, inputs: list[Any], device: str) -> list[torch.Tensor]:
    """Call a module twice, and check that its outputs agree and that it changes nothing."""
    kept = [one.clone() if isinstance(one, torch.Tensor) else one for one in inputs]
    state = {name: one.clone() for name, one in model.state_dict().items()}
    torch.manual_seed(1)
    outputs = _call(model, inputs, device)
    if any(isinstance(a, torch.Tensor) and not torch.equal(a, b) for a, b in zip(inputs, kept, strict=True)):
        raise _Unfit("it changes an input in place; let forward work on a copy")
    changed = [name for name, one in model.state_dict().items() if not torch.equal(one, state[name])]
    if changed:
        raise _Unfit(
            f"a call changes its state ({', '.join(changed[:3])}), as batch norm does in training mode; call "
            "self.eval() at the end of its constructor"
        )
    torch.manual_seed(2)
    if not _close(outputs, _call(model, kept, device)):
        raise _Unfit(
            "two calls with the same inputs give different outputs, as dropout does in training mode; call self.eval() "
            "at the end of its constructor, or take what is random out of forward"
        )
    return outputs


def _best_ms(call: Callable[[], object], device: str) -> float:
    """Return the shortest time of a call; on a GPU of calls in a row, so that starting them is hidden."""
    calls, best = _IN_A_ROW[device], float("inf")
    for _ in range(_REPEATS):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best * 1e3 / calls


class _Functions(TorchDispatchMode):
    """Counter of elements of exponentials, logarithms and the like, the main cost of pointwise operators."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator call, and count its elements."""
        found = func(*args, **(kwargs or {}))
        if func.__name__.partition(".")[0] in _TRANSCENDENTAL and isinstance(found, torch.Tensor):
            self.elements += found.numel()
        return found


def _bounds(moved_bytes: int, flops: int, functions: int, device: str) -> tuple[float, float]:
    """Return the shortest times in ms for bytes and arithmetic; on a CPU with one core, as in the judge.

    On a GPU, functions are left out, because it computes them faster than its memory moves their operands.
    """
    torch.set_num_threads(1)
    half = torch.zeros(max(moved_bytes // 2, 1), dtype=torch.uint8, device=device)
    other = torch.ones_like(half)
    bytes_ms = _best_ms(lambda: other.copy_(half), device)
    flops_ms = 0.0
    if flops:
        side = _SIDE[device]
        square = torch.randn(side, side, device=device)
        flops_ms = flops / (2 * side**3) * _best_ms(lambda: square @ square, device)
    if functions and device == "cpu":
        few, result = torch.randn(_FEW), torch.empty(_FEW)
        flops_ms += functions / _FEW * _best_ms(lambda: torch.exp(few, out=result), device)
    return bytes_ms, flops_ms


def _counted(model: torch.nn.Module, inputs: list[Any]) -> tuple[int, int]:
    """Return the number of floating-point operations, and of elements of functions."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*inputs)
    with torch.no_grad(), _Functions() as functions:
        model(*inputs)
    return counter.get_total_flops(), functions.elements


def _described(source: Path, device: str) -> dict[str, Any]:
    module = load_file(source)
    torch.manual_seed(0)
    model = module.Model(*module.get_init_inputs())
    if not isinstance(model, torch.nn.Module):
        raise _Unfit(f"it makes a {type(model).__name__}, not an nn.Module")
    _check_device([*model.parameters(), *model.buffers()], "its state", device)
    model = model.to(device)
    inputs = _inputs(module, device)
    again = _inputs(module, device)
    varying = [a for a, b in zip(inputs, again, strict=True) if isinstance(a, torch.Tensor) and not torch.equal(a, b)]
    if not varying:
        raise _Unfit("its inputs are the same in each call of the function that makes them; draw them (torch.randn)")
    outputs = _check_calls(model, inputs, device)
    raw = model(*inputs)
    training = model.training
    mode_matters = not _same(outputs, _call(model.train(not training), inputs, device))
    model.train(training)
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    flops, functions = _counted(model, inputs)
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    moved = sum(one.numel() * one.element_size() for one in (*tensors, *outputs))
    bytes_ms, flops_ms = _bounds(moved, flops, functions, device)
    return {
        "inputs": [{"tensor": _form(one)} if isinstance(one, torch.Tensor) else {"value": one} for one in inputs],
        "outputs": [_form(one) for one in _outputs(raw, device)],
        "returns": returned(raw),
        "state": {name: _form(one) for name, one in state.items()},
        "configuration": configuration_of(model),
        "training": training,
        "mode_matters": mode_matters,
        "moved_bytes": moved,
        "flops": flops,
        "functions": functions,
        "bytes_ms": bytes_ms,
        "flops_ms": flops_ms,
    }


def main() -> None:
    """Print the description of the module, or why it cannot be optimised, in one line of JSON."""
    source, device = Path(sys.argv[1]), sys.argv[2]
    try:
        found = _described(source, device)
    except _Unfit as error:
        found = {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - reports any error of a user's module
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
