"""The operator calls of the reference's forward pass: counted, changed, timed, and chosen by time."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from types import TracebackType
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from cudal1_worker.oracle.models import Mode
from cudal1_worker.oracle.steps import Call, Place, has_tensor, is_view, name_of

_MAX_CALLS = 16
"""Maximum calls to choose."""
_RUNS, _RUNS_S = 3, 0.1
"""Calls are timed in at least this many runs, and in more until these seconds are over."""
_LEAST_S = 1e-6
"""Least duration of a call, in seconds."""
_SPARED = 0.05
"""Share of the forward pass's time that its cheapest calls take together; these are not chosen."""
_PAUSE_S = 1e-4
"""Seconds between two operators that Python and modes take at most."""
_TRIES = 30
"""Runs of which at least one must not work outside of operators; the machine may be busy in some."""
_NOTHING = ("empty_like", "new_empty", "new_empty_strided")
"""Calls that compute nothing."""
_EXITS = (
    *("numpy", "__array__", "__dlpack__", "__cuda_array_interface__", "data_ptr"),
    *("storage", "untyped_storage", "_typed_storage", "apply_", "map_", "map2_"),
)
"""Functions of a tensor whose result no operator reads."""
_NUMBERS = ("item", "tolist", "__float__", "__int__", "__complex__", "__index__")
"""Functions of a tensor that return its elements."""
_OWN = ("aten", "prims", "mkldnn", "torchvision")
"""Namespaces of operators whose work can be known."""
_FEW_NUMBERS = 64
"""More numbers than a reference needs for sizes and choices."""
EXTREMES = ("amax", "amin", "aminmax", "max", "min")
"""Reductions that the usual softmax only subtracts; none has another's value in its place."""


class Calls(Mode):
    """Counts the calls that compute from tensors, and changes one or all.

    Args:
        change: Executes a changed call.
        number: Number or place of the call to change; None for all.
    """

    def __init__(self, change: Callable[[Call], Any], number: int | Place | None = None) -> None:
        super().__init__()
        self._change = change
        self._number = number
        self.is_done = False
        """Whether the one call to change is behind."""
        self._count = 0
        self._of_name = Counter[str]()

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.is_done or not _computes(func) or not has_tensor((*args, *kwargs.values())):
            return func(*args, **kwargs)
        name = name_of(func)
        number, place = self._count, (name, self._of_name[name])
        self._count += 1
        self._of_name[name] += 1
        if self._number not in (None, number, place):
            return func(*args, **kwargs)
        self.is_done = self._number is not None
        return self._change(Call(func, args, kwargs, number, place))


@cache
def _computes(func: Any) -> bool:
    """Return whether an operator computes something: it makes no view, and does more than reserve memory."""
    return not is_view(func) and name_of(func) not in _NOTHING


def tensors(result: Any) -> list[torch.Tensor]:
    """Return the tensors that a call returns."""
    return [one for one in (result if isinstance(result, tuple | list) else [result]) if isinstance(one, torch.Tensor)]


def results(result: Any, number: int = 0) -> list[torch.Tensor]:
    """Return a call's results that have the shape of the one of a number; empty if there is none."""
    found = tensors(result)
    return [one for one in found if one.shape == found[number].shape]


class Exits(TorchFunctionMode):
    """Notes how values leave the operators on tensors: for numpy, Python's numbers, threads, lists, other operators."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""
        """The first way; empty for none."""
        self._foreign = _Foreign()
        self._numbers = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Execute a function of torch."""
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name in _NUMBERS and isinstance(args[0], torch.Tensor):
            self._numbers += args[0].numel()
        if name in _EXITS or (name in _NUMBERS and self._numbers > _FEW_NUMBERS):
            self.found = self.found or f"Tensor.{name}"
        return func(*args, **kwargs or {})

    def __enter__(self) -> Self:
        threading.setprofile(self._started)
        self._foreign.__enter__()
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, error, tb)
        self._foreign.__exit__(kind, error, tb)
        threading.setprofile(None)
        if threading.active_count() > 1:
            self._started()
        self.found = self.found or self._foreign.found

    def _started(self, *_: object) -> None:
        self.found = self.found or "another thread"


class _Foreign(Mode):
    """Notes operators on lists of tensors, each of which does many calls' work, and those that are not torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name_of(func).startswith("_foreach") or func.namespace not in _OWN:
            self.found = name_of(func)
        return func(*args, **kwargs)


class _Outside(Mode):
    """Adds up the seconds between operators, of any kind, beyond `_PAUSE_S` each."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self._ended = time.perf_counter()

    def pause(self) -> None:
        """Count the time since the last operator."""
        self.seconds += max(0.0, time.perf_counter() - self._ended - _PAUSE_S)

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.pause()
        result = func(*args, **kwargs)
        self._ended = time.perf_counter()
        return result


def outside(run: Callable[[list[Any]], object], values: list[Any], device: torch.device) -> float:
    """Return the share of a forward pass's time outside of operators, the least of several runs.

    A GPU's time counts to its end: what Python does beside it costs nothing.
    """
    least = 1.0
    for _ in range(_TRIES):
        began = time.perf_counter()
        with _Outside() as mode:
            run(values)
            mode.pause()
        if device.type == "cuda":
            torch.cuda.synchronize()
        least = min(least, mode.seconds / (time.perf_counter() - began))
        if least < _SPARED:
            break
    return least


def timed(run: Callable[[list[Any]], object], values: list[Any], device: torch.device) -> list[float]:
    """Return the seconds of each call of a forward pass, the least of several runs.

    Few runs do not do: a call that was slow in all of them makes all others seem cheap, so that none is chosen. A call
    on one element comes first. Its duration, that of executing a call at all, is subtracted from the others'.

    Args:
        run: Executes it.
        values: Its inputs.
        device: Where it runs.
    """
    seconds = list[float]()

    def clocked(call: Call) -> Any:
        began = time.perf_counter()
        result = call.func(*call.args, **call.kwargs)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        return result

    element, runs, end = torch.ones(1, device=device), list[list[float]](), time.perf_counter() + _RUNS_S
    while len(runs) < _RUNS or time.perf_counter() < end:
        seconds = list[float]()
        with Calls(clocked):
            element.neg()
            run(values)
        runs.append(seconds)
    least, *calls = map(min, zip(*runs, strict=False))
    return [max(_LEAST_S, call - least) for call in calls]


def chosen(seconds: Sequence[float], draw: random.Random) -> list[int]:
    """Return the numbers of the calls to test, drawn in proportion to their seconds, without the cheapest.

    A draw without replacement takes the largest of log(u) / w, with u uniform and w the weight (Efraimidis and Spirakis
    2006, Information Processing Letters 97).
    """
    left = _SPARED * sum(seconds)
    keys: dict[int, float] = {}
    for k in sorted(range(len(seconds)), key=lambda k: seconds[k]):
        left -= seconds[k]
        if left < 0.0:
            keys[k] = math.log(1.0 - draw.random()) / seconds[k]
    return sorted(sorted(keys, key=lambda k: -keys[k])[:_MAX_CALLS])
