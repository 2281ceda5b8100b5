"""Finds work that a program could omit without a visible effect on outputs, for tasks that no audit covers.

The reference runs once for each fault of a list: a product with its factors rounded to the next lower precision; a step
that omits terms, or returns zeros if a part of its terms cannot be omitted; an input, or a quarter of it along a
dimension, replaced by another draw's. An output shows a fault if an element exceeds its tolerance. If no output shows
it, a program could omit this work and be correct, so the judge pays nothing above 1
(docs/decisions/003-gate-runs-programs.md).

Faults are excused if they do not change their step's result (for omitted terms: change it by at most a thousandth) or
the float64 answer. Float64 may have lost a fading part of an input; to not excuse that, the part is widened until
outputs nearly show it. Lower precision is also excused if every output stays within one unit in the last place of its
neighbours. Maxima and minima are not omitted, because the usual softmax only subtracts one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from cudal1_worker import protocol as wire
from cudal1_worker.oracle.faults import MIN_SHARE, Counting, Watched
from cudal1_worker.oracle.models import copied
from cudal1_worker.oracle.reference_error import error_of
from cudal1_worker.oracle.steps import LOWER, Call
from cudal1_worker.oracle.tolerance import Seen

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

MAX_PRODUCTS, MAX_OTHERS = 8, 16
"""Maximum products and other operator calls to test, spread over the forward pass; as many small calls again that take
long."""
_SPARED = 0.05
"""Share of the forward pass's time that its cheapest calls take together; among small calls these are not tested."""
_NOTHING = ("empty_like", "new_empty", "new_empty_strided")
"""Calls that compute nothing."""
_NEIGHBOURS = 16
"""Adjacent elements whose largest magnitude defines the size of one rounding."""
_QUARTERS = 4
"""Parts of a dimension to test; each index if there are fewer."""
_MAX_PARTS = 64
"""Maximum parts of inputs to test; those of the largest inputs come first."""
_EXTREMES = ("amax", "amin", "max", "min")
_MATERIAL = 1e-3
"""A fault counts if omitted terms change the step's result by more than this share of its largest magnitude."""


@dataclass(frozen=True)
class _Fault:
    """One way to omit work."""

    text: str
    step: int | None = None
    """Number of the step; None for a fault in an input."""
    precision: str | None = None
    """Precision to which a product's factors are rounded; None to omit terms."""
    place: int = 0
    """Position of the input to replace with another draw's."""
    part: tuple[slice, ...] = ()
    """Part of the input to replace, or of a product's last factor to omit; all by default."""


@dataclass(frozen=True)
class _Set:
    """A set of inputs, the reference's results for it, and another draw."""

    values: list[Any]
    answers: list[torch.Tensor]
    own: list[torch.Tensor]
    allowed: list[torch.Tensor]
    """Tolerances of each output's elements, flat; meaningless for integers."""
    finite: list[bool]
    """Whether each answer is finite."""
    others: list[Any]


class Unseen:
    """Finds work whose omission no output shows."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def unseen(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Return the first fault that no output shows on any of the sets of `seeds`; an empty text for none.

        Without `precision`, only omitted work is tested, because an audit tests lower precision itself.
        """
        try:
            found = self._found(message["seeds"], precision=message["precision"])
            return {"work": next(iter(found), ""), "tried": True}
        except torch.OutOfMemoryError:
            return {"work": "what a call leaves out (there was too little memory to try)", "tried": False}

    def _found(self, seeds: list[int], *, precision: bool) -> list[str]:
        left: list[_Fault] | None = None
        for seed in seeds:  # one set at a time: large tasks leave no memory for two
            one = self._set(seed)
            if left is None:
                left = [fault for fault in self._faults(one) if precision or fault.precision is None]
            left = [fault for fault in left if self._passes(one, fault)]
        return [fault.text for fault in left or []]

    def _faults(self, one: _Set) -> list[_Fault]:
        values = copied(one.values)
        with _Calls(gpu=self._oracle.device.type == "cuda") as counted:
            self._oracle.run(self._oracle.models.plain, values)
        calls = counted.seen
        products = [k for k, call in enumerate(calls) if call.is_product]
        others = [k for k, call in enumerate(calls) if not call.is_product and call.name not in _EXTREMES]
        found: list[_Fault] = []
        for number, k in enumerate(_chosen(calls, products, MAX_PRODUCTS)):
            lower, name = self._next_lower(calls[k].dtype), f"product {number + 1} ({calls[k].name})"
            found.append(_Fault(f"{name} in {lower}", k, lower))
            parts = [part for dim, size in calls[k].parted for part in _quarters(dim, size)]
            found += [_Fault(f"a part of {name} left out", k, part=part) for part in parts or [()]]
        for k in _chosen(calls, others, MAX_OTHERS):
            found.append(_Fault(f"a part of step {k + 1} ({calls[k].name}) left out", k))
        tensors = {place: value for place, value in enumerate(one.values) if isinstance(value, torch.Tensor)}
        found += [_Fault(f"input {place}, if it was another call's", place=place) for place in tensors]
        return found + _of_parts(tensors)

    def _next_lower(self, dtype: torch.dtype) -> str:
        own_tf32 = self._oracle.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
        return next(name for name in LOWER[dtype] if name != "tf32" or not own_tf32)

    def _set(self, seed: int) -> _Set:
        values, others = (self._oracle.fresh_inputs(one, "own") for one in (seed, seed ^ 1))
        answers = self._oracle.exact(self._oracle.models.wide, copied(values))
        nearby = self._oracle.nearby(values, answers, seed)
        own, errors = self._oracle.errors(self._oracle.models, copied(values), answers)
        allowed = [torch.empty_like(answer).reshape(-1) for answer in answers]
        for place, (profile, answer) in enumerate(zip(self._oracle.profiles, answers, strict=True)):
            if profile is not None:
                seen = Seen(answer.reshape(-1), errors[place], nearby[place])
                profile.of_all(allowed[place], seen, self._oracle.limits[place])
        return _Set(values, answers, own, allowed, [bool(answer.isfinite().all()) for answer in answers], others)

    def _passes(self, one: _Set, fault: _Fault) -> bool:
        """Return whether a fault is unseen in the outputs and not excused."""
        if fault.step is None:
            return self._is_unseen(one, fault) and any(
                self._changes_answer(one, wide) for wide in self._wider(one, fault)
            )
        return self._is_unseen(one, fault)

    def _is_unseen(self, one: _Set, fault: _Fault) -> bool:
        """Return whether no output shows a fault and, for a fault in a step, whether it is not excused."""
        try:
            outputs = self._with_fault(one, fault)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a failure is visible
            return False
        if outputs is None:
            return False
        excused = fault.precision is not None
        for place, (output, answer) in enumerate(zip(outputs, one.answers, strict=True)):
            found, right = error_of(output, answer), answer.reshape(-1)
            if not answer.is_floating_point():
                excused = False  # an unchanged integer does not show how near it was to changing
                if not bool(((found == 0) | (output.reshape(-1) == one.own[place].reshape(-1))).all()):
                    return False
                continue
            if not one.finite[place]:
                same = (output.reshape(-1) == right) | (output.reshape(-1).isnan() & right.isnan())
                found = torch.where(right.isfinite(), found, torch.where(same, 0.0, torch.inf))
            if not bool((found <= one.allowed[place]).all()):
                return False
            excused = excused and _is_one_rounding(found, right, output.dtype)
        return not excused

    def _with_fault(self, one: _Set, fault: _Fault) -> list[torch.Tensor] | None:
        """Return the reference's outputs with a fault; None if the fault does not change its step's result."""
        plain = self._oracle.models.plain
        if fault.step is None:
            return self._oracle.run(plain, self._replaced(one, fault))
        change = _LeftOut(fault.part) if fault.precision is None else Watched(fault.precision)
        values = copied(one.values)
        with _Calls(fault.step, change):
            outputs = self._oracle.run(plain, values)
        return outputs if change.changed else None

    def _wider(self, one: _Set, fault: _Fault) -> Iterator[_Fault]:
        """Yield the fault, then those in the widest parts with the same start or end that no output shows."""
        yield fault
        if not fault.part:
            return
        *others, own = fault.part
        size = one.values[fault.place].shape[len(others)]
        for back in (True, False):
            least, most = 0, own.start if back else size - own.stop
            while least < most:
                more = (least + most + 1) // 2
                wider = slice(own.start - more, own.stop) if back else slice(own.start, own.stop + more)
                if self._is_unseen(one, replace(fault, part=(*others, wider))):
                    least = more
                else:
                    most = more - 1
            if least:
                wider = slice(own.start - least, own.stop) if back else slice(own.start, own.stop + least)
                yield replace(fault, part=(*others, wider))

    def _changes_answer(self, one: _Set, fault: _Fault) -> bool:
        """Return whether the float64 answer changes if (a part of) an input is replaced with another draw's."""
        answers = self._oracle.exact(self._oracle.models.wide, self._replaced(one, fault))
        return not all(torch.equal(new, old) for new, old in zip(answers, one.answers, strict=True))

    def _replaced(self, one: _Set, fault: _Fault) -> list[Any]:
        """Return the inputs with (a part of) one replaced with another draw's."""
        values = copied(one.values)
        values[fault.place][fault.part].copy_(one.others[fault.place][fault.part])
        return values


@dataclass(frozen=True)
class _Seen:
    """An operator call in a forward pass."""

    name: str
    is_product: bool
    size: int
    """Number of elements of its largest operand."""
    dtype: torch.dtype
    parted: list[tuple[int, int]]
    """`Call.parted` of a product; empty for other calls."""
    seconds: float = 0.0
    """Duration."""


class _Calls(Counting):
    """Counts and times the calls that compute from floating-point tensors, and changes one; see `Counting`."""

    def __init__(
        self, number: int | None = None, change: Callable[[Call], Any] | None = None, *, gpu: bool = False
    ) -> None:
        super().__init__(number, change)
        self.seen: list[_Seen] = []
        self._gpu = gpu
        """Whether a call's duration ends with its kernels."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Execute one operator call and note its duration."""
        before, began = len(self.seen), time.perf_counter()
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if len(self.seen) > before:
            if self._gpu:
                torch.cuda.synchronize()
            self.seen[-1] = replace(self.seen[-1], seconds=time.perf_counter() - began)
        return result

    def number_of(self, call: Call) -> int | None:
        """Count a call."""
        if not call.operands or call.name in _NOTHING or _is_view(call.func):
            return None
        is_product = call.kind == "product" and call.dtype in LOWER
        self.seen.append(_Seen(call.name, is_product, call.size, call.dtype, call.parted if is_product else []))
        return len(self.seen) - 1


def _is_view(func: Any) -> bool:
    """Return whether an operator returns no tensor, or a view of its operand."""
    returns = func._schema.returns
    return not returns or (returns[0].alias_info is not None and not returns[0].alias_info.is_write)


class _LeftOut:
    """Executes calls with omitted terms or with zeros as result; records whether the result changed (much).

    Args:
        part: Part of a product's last factor to omit.
    """

    def __init__(self, part: tuple[slice, ...]) -> None:
        self.changed = False
        self._part = part

    def __call__(self, call: Call) -> Any:
        """Execute one call."""
        if call.func._schema.is_mutable:
            self.changed = True
            if self._part:
                return call.without(self._part)
            result = call.func(*call.args, **call.kwargs)
            for one in result if isinstance(result, tuple) else (result,):
                one.zero_()
            return result
        result = call.func(*call.args, **call.kwargs)
        if call.kind == "reduction" and "strided" in call.faults():
            faulty, differ = call.with_fault("strided"), _differ
        else:
            faulty, differ = call.without(self._part) if self._part else _zeros(result), _is_other
        before, after = (one[0] if isinstance(one, tuple) else one for one in (result, faulty))
        self.changed = self.changed or differ(before, after)
        return faulty


def _zeros(result: Any) -> Any:
    """Return a call's result with zeros in its tensors."""
    if isinstance(result, tuple | list):
        return type(result)(map(_zeros, result))
    return torch.zeros_like(result) if isinstance(result, torch.Tensor) else result


def _is_other(before: torch.Tensor, after: torch.Tensor) -> bool:
    return not torch.equal(before.nan_to_num(), after.nan_to_num())


def _differ(before: torch.Tensor, after: torch.Tensor) -> bool:
    if not before.is_floating_point():
        return not torch.equal(before, after)
    one, other = (part.nan_to_num(0.0) for part in (before, after))
    return bool((one - other).abs().max() > _MATERIAL * one.abs().max())


def _quarters(dim: int, size: int) -> list[tuple[slice, ...]]:
    """Return the quarters of a dimension as indices of a tensor; none of one element."""
    count = min(_QUARTERS, size) if size > 1 else 0
    return [(*[slice(None)] * dim, slice(size * k // count, size * (k + 1) // count)) for k in range(count)]


def _of_parts(tensors: dict[int, torch.Tensor]) -> list[_Fault]:
    """Return faults in parts of inputs, those of the largest inputs first."""
    most = max((one.numel() for one in tensors.values()), default=0)
    found: list[_Fault] = []
    for place, value in sorted(tensors.items(), key=lambda pair: -pair[1].numel()):
        for dim, size in enumerate(value.shape if value.numel() >= MIN_SHARE * most else ()):
            for part in _quarters(dim, size):
                text = f"[{part[-1].start}:{part[-1].stop}] of dimension {dim} of input {place}"
                found.append(_Fault(f"{text}, if it was another call's", place=place, part=part))
    return found[:_MAX_PARTS]


def _chosen(calls: list[_Seen], some: list[int], count: int) -> list[int]:
    """Return numbers of calls from `some`: at most `count` of large ones and as many of others that take long."""
    most = max((calls[k].size for k in some), default=0)
    large = [k for k in some if calls[k].size >= MIN_SHARE * most]
    long = _long(calls)
    return _spread(large, count) + _spread([k for k in some if k in long and k not in large], count)


def _long(calls: list[_Seen]) -> set[int]:
    """Return the numbers of all calls but the cheapest, which take `_SPARED` of the time together."""
    left = _SPARED * sum(call.seconds for call in calls)
    found: set[int] = set()
    for k in sorted(range(len(calls)), key=lambda k: calls[k].seconds):
        left -= calls[k].seconds
        if left < 0.0:
            found.add(k)
    return found


def _spread(some: list[int], count: int) -> list[int]:
    """Return at most `count` of some numbers, evenly spaced."""
    if len(some) <= count:
        return some
    return [some[round(k * (len(some) - 1) / (count - 1))] for k in range(count)]


def _is_one_rounding(error: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether each error is within one unit in the last place of the largest neighbouring element."""
    padding = (0, -right.numel() % _NEIGHBOURS)
    size = torch.nn.functional.pad(right.abs(), padding).view(-1, _NEIGHBOURS)
    largest = size.nan_to_num(0.0, posinf=0.0).amax(1, keepdim=True)
    found = torch.nn.functional.pad(error, padding).view(-1, _NEIGHBOURS)
    return bool((found <= torch.finfo(dtype).eps * largest).all())
