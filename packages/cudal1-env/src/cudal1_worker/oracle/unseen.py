"""Finds work that a program could omit without a visible effect on outputs, for tasks that no audit covers.

Faults are injected into the reference, one in each run: an input, or the result of a call that takes time, is replaced
by that of another draw of the inputs, in whole or in a part; a product's factors are rounded to the next lower
precision, or a part of its last factor is zero; operand and result of an elementwise function are rounded to bfloat16;
the quarter of a result on which outputs depend least is replaced; and those of `omitted`. An output shows a fault if an
element exceeds its tolerance. If no output shows it, a program could omit this work and be correct, so the judge pays
nothing above 1 (docs/decisions/003-gate-runs-programs.md). Nor does it if parts of a product's result come again for
the other draw: a program could keep a table of them (an integer input with few values).

Calls are drawn at random, in proportion to their time: to omit one that no run tests saves little. A fault that does
not change its step's result is excused, unless this is a long product, or differs for the largest inputs (a check that
passes on all draws). So is a part of a result that NaN would not reach the outputs from, because no output is computed
from it (a slice, a mask), and a part of an input that does not change the float64 answer. Float64 may have lost a
fading part of an input; to not excuse that, the part is widened until outputs nearly show it. Lower precision is also
excused if every output stays within one unit in the last place of its neighbours. That of a function is not tested if
an output has half precision, in which programs may round any result, or integers, of which a few show little. The
usual softmax only subtracts a maximum, so of maxima and minima the one question is whether they are only compared: the
float64 answer is the same to the last bit for another finite value, and not for an infinite one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from cudal1_worker import protocol as wire
from cudal1_worker.oracle import omitted
from cudal1_worker.oracle.calls import EXTREMES, Calls, chosen, results, timed
from cudal1_worker.oracle.dependence import negligible_parts
from cudal1_worker.oracle.faults import Watched
from cudal1_worker.oracle.models import copied, same_bits
from cudal1_worker.oracle.recurrence import SHARE, came_again
from cudal1_worker.oracle.reference_error import error_of
from cudal1_worker.oracle.steps import HALF, LOWER, OTHERS, Call
from cudal1_worker.oracle.tolerance import Seen, bulk

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

_LONG = 0.1
"""A product that takes this share of the time must not have the same result for all inputs."""
_ACCEPTED = 0.2
"""Share of an output's elements whose tolerance may include another draw's value, if the two differ."""
_PARTS, _LEAST_PARTS = 96, 3
"""Parts of all results to replace, drawn for each call in equal numbers, at least so many for each."""
_NEIGHBOURS = 16
"""Adjacent elements whose largest magnitude defines the size of one rounding."""
_QUARTERS = 4
"""Parts of a dimension to test; each index if there are fewer."""
_STRIDES = (2, 8)
"""Distances of indices that are tested together."""
_MAX_PARTS = 96
"""Maximum parts of inputs to test; those of the largest inputs come first."""


@dataclass(frozen=True)
class _Fault:
    """One way to omit work."""

    text: str
    step: int | None = None
    """Number of the step; None for a fault in an input."""
    change: Callable[[Call], Any] | None = None
    """Executes the step with a fault; None if a result is replaced."""
    rounds: bool = False
    """Whether `change` only rounds."""
    twin: tuple[str, int] | None = None
    """Name and number of the step in the float64 twin, if the fault is tested there: a program may round less."""
    place: int = 0
    """Position of the input to replace."""
    part: tuple[slice, ...] = ()
    """Part to replace by another draw's; all by default."""
    extreme: bool = False
    """Whether the step is a maximum or minimum, and the fault is that it is only compared."""
    least: bool = False
    """Whether to replace the quarter of the step's result on which outputs depend least; `twin` names the step."""
    where: torch.Tensor | None = None
    """That quarter on the present set, as a mask."""

    @property
    def index(self) -> tuple[Any, ...]:
        """Index of the part."""
        return self.part if self.where is None else (self.where,)


@dataclass(frozen=True)
class _Set:
    """A set of inputs, the reference's results for it, and another draw."""

    values: list[Any]
    answers: list[torch.Tensor]
    own: list[torch.Tensor]
    allowed: list[torch.Tensor]
    """Tolerances of each output's elements, flat; meaningless for integers."""
    first: list[torch.Tensor]
    """The same without errors on moved inputs."""
    bulks: list[float | None]
    """Largest `tolerance.bulk` of each output, by these tolerances; None if there is no limit."""
    finite: list[bool]
    """Whether each answer is finite."""
    others: list[Any]


class Unseen:
    """Finds work whose omission no output shows."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._long: set[int] = set()
        """Products that take long."""
        self._products: dict[int, str] = {}
        """Names of the products among the steps to test."""

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
                left = [fault for fault in self._faults(one, seed) if precision or not fault.rounds]
            accepting = self._accepting(one)
            if accepting:
                return [accepting]
            passed: list[_Fault] = []
            steps = [fault.twin for fault in left if fault.least and fault.twin]
            least = negligible_parts(self._oracle, one.values, one.allowed, steps)
            left = [replace(fault, where=least.get(fault.twin)) if fault.least else fault for fault in left]
            left = [fault for fault in left if fault.least == (fault.where is not None)]
            for step, faults in groupby(left, key=lambda fault: fault.step):
                stand_in = None if step is None else self._result(one.others, step)
                if step in self._products and self._recurs(self._result(one.values, step), stand_in):
                    return [f"parts of {self._products[step]}, if they were another call's at other places"]
                passed += [fault for fault in faults if self._passes(one, fault, stand_in)]
            left = passed
        return [fault.text for fault in left or []]

    def _faults(self, one: _Set, seed: int) -> list[_Fault]:
        model, draw = self._oracle.models.plain, random.Random(seed)
        kept = {state.untyped_storage().data_ptr() for state in (*model.parameters(), *model.buffers())}
        calls = timed(partial(self._oracle.run, model), one.values, self._oracle.device, kept)
        whole = sum(call.seconds for call in calls)
        found, least = list[_Fault](), list[_Fault]()
        tested = chosen(calls, draw)
        for k in tested:
            name = f"step {k + 1} ({calls[k].name})"
            twin = calls[k].name, sum(call.name == calls[k].name for call in calls[:k])
            if calls[k].name in EXTREMES:
                found.append(_Fault(f"{name}, which is only compared", k, twin=twin, extreme=True))
                continue
            if calls[k].is_product:
                lower = self._next_lower(calls[k].dtype)
                found.append(_Fault(f"{name} in {lower}", k, partial(Call.with_fault, fault=lower), rounds=True))
                parts = [part for dim, size in calls[k].parted for part in _quarters(dim, size)]
                found += [_Fault(f"a part of {name} left out", k, partial(Call.without, part=part)) for part in parts]
            elif calls[k].rounds and all(own.dtype not in HALF and own.is_floating_point() for own in one.own):
                lower = OTHERS[calls[k].dtype][0]
                found.append(_Fault(f"{name} in {lower}", k, partial(Call.with_fault, fault=lower), rounds=True))
            least.append(_Fault(f"the quarter of {name} that matters least", k, twin=twin, least=True))
            for words, change in calls[k].omitted:
                found.append(_Fault(f"{name} {words}", k, change, rounds=change is omitted.in_eight_bits, twin=twin))
            found.append(_Fault(f"{name}, if it was another call's", k))
            parts = [part for dim, size in enumerate(calls[k].shape) for part in _parts(dim, size, draw)]
            count = max(_LEAST_PARTS, _PARTS // len(tested))
            for part in draw.sample(parts, min(count, len(parts))):
                found.append(_Fault(f"{_words(part)} of {name}, if it was another call's", k, part=part))
        self._products = {k: f"step {k + 1} ({calls[k].name})" for k in tested if calls[k].is_product}
        self._long = {k for k, call in enumerate(calls) if call.is_product and call.seconds >= _LONG * whole}
        tensors = {place: value for place, value in enumerate(one.values) if isinstance(value, torch.Tensor)}
        found += [_Fault(f"input {place}, if it was another call's", place=place) for place in tensors]
        return found + _of_parts(tensors, draw) + least

    def _next_lower(self, dtype: torch.dtype) -> str:
        own_tf32 = self._oracle.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
        return next(name for name in LOWER[dtype] if name != "tf32" or not own_tf32)

    def _set(self, seed: int) -> _Set:
        values, others = (self._oracle.fresh_inputs(one, "own") for one in (seed, seed ^ 1))
        answers = self._oracle.exact(self._oracle.models.wide, copied(values))
        own, errors = self._oracle.errors(self._oracle.models, copied(values), answers)
        first = self._allowed(answers, errors, None)
        half = [one if limits.largest else None for one, limits in zip(first, self._oracle.limits, strict=True)]
        nearby, at_random = self._oracle.nearby(values, answers, seed, half)
        bulks = self._oracle.allowed_bulks(own, answers, half, at_random)
        finite = [bool(answer.isfinite().all()) for answer in answers]
        return _Set(values, answers, own, self._allowed(answers, errors, nearby), first, bulks, finite, others)

    def _allowed(
        self, answers: list[torch.Tensor], errors: list[torch.Tensor], nearby: list[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        """Return the tolerance of each element, flat; of integers anything."""
        allowed = [torch.empty_like(answer).reshape(-1) for answer in answers]
        for place, (profile, answer) in enumerate(zip(self._oracle.profiles, answers, strict=True)):
            if profile is not None:
                seen = Seen(answer.reshape(-1), errors[place], None if nearby is None else nearby[place])
                profile.of_all(allowed[place], seen, self._oracle.limits[place])
        return allowed

    def _accepting(self, one: _Set) -> str:
        """Return which output accepts another draw's values in too many elements; empty if none does."""
        outputs = self._oracle.run(self._oracle.models.plain, copied(one.others))
        for place, (output, answer) in enumerate(zip(outputs, one.answers, strict=True)):
            if answer.is_floating_point() and one.finite[place] and answer.numel():
                other = output.reshape(-1) != one.own[place].reshape(-1)
                accepted = (error_of(output, answer) <= one.allowed[place]) & other
                if int(accepted.sum()) > _ACCEPTED * answer.numel():
                    return f"that elements of output {place} are another call's"
        return ""

    def _result(self, values: list[Any], step: int) -> list[torch.Tensor]:
        """Return the result of a call for some inputs."""
        found, values = list[torch.Tensor](), copied(values)

        def keep(call: Call) -> Any:
            result = call.func(*call.args, **call.kwargs)
            found[:] = [one.clone() for one in results(result)]
            return result

        with Calls(step, keep):
            self._oracle.run(self._oracle.models.plain, values)
        return found

    def _recurs(self, own: list[torch.Tensor], other: list[torch.Tensor] | None) -> bool:
        """Return whether a part of a result comes again for the other draw, at any place, but not all of it."""
        if other is None or all(map(same_bits, own, other)):
            return False
        return any(came_again(one, two) > SHARE for one, two in zip(own, other, strict=True))

    def _may_differ(self, one: _Set, step: int) -> bool:
        """Return whether a call's result, the same for both draws, differs for the largest inputs."""
        try:
            largest = self._result(list(map(_as_large_as_may_be, one.values)), step)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # the reference refuses them
            return False
        own = self._result(one.values, step)
        return not any(bool(new.isnan().any()) for new in largest) and not all(map(same_bits, own, largest))

    def _passes(self, one: _Set, fault: _Fault, stand_in: list[torch.Tensor] | None) -> bool:
        """Return whether a fault is unseen in the outputs and not excused."""
        if fault.step is None:
            return self._is_unseen(one, fault) and any(
                self._changes_answer(one, wide) for wide in self._wider(one, fault)
            )
        if fault.extreme:
            return self._is_only_compared(one, fault)
        unseen = self._is_unseen(one, fault, stand_in)
        partly = bool(fault.index) or fault.change is omitted.without_least
        return unseen and not (partly and self._is_dead(one, fault))

    def _is_only_compared(self, one: _Set, fault: _Fault) -> bool:
        """Return whether another finite value of a call leaves the float64 answer as it is, and an infinite one not."""

        def is_same(to: Callable[[torch.Tensor], torch.Tensor]) -> bool:
            try:
                with Calls(fault.twin, partial(_with_results, to=to)):
                    answers = self._oracle.exact(self._oracle.models.wide, copied(one.values))
            except torch.OutOfMemoryError:
                raise
            except Exception:  # the reference itself checks it
                return False
            return all(map(same_bits, answers, one.answers))

        infinities = (partial(torch.full_like, fill_value=sign * torch.inf) for sign in (1, -1))
        return is_same(lambda value: 1.25 * value + 0.25) and not all(map(is_same, infinities))

    def _is_dead(self, one: _Set, fault: _Fault) -> bool:
        """Return whether NaN in a part of a call's result, or in the tiles left out, reaches no output."""
        change: Watched | _Replaced = _Replaced(fault.index, None)
        if not fault.index:
            change = Watched(partial(omitted.without_least, fill=torch.nan), compares=False)
        values = copied(one.values)
        try:
            with Calls(fault.step, change):
                outputs = self._oracle.run(self._oracle.models.plain, values)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # it reaches a check
            return False
        return change.changed and all(map(same_bits, one.own, outputs))

    def _is_unseen(self, one: _Set, fault: _Fault, stand_in: list[torch.Tensor] | None = None) -> bool:
        """Return whether no output shows a fault and, for a fault in a step, whether it is not excused."""
        try:
            outputs = self._with_fault(one, fault, stand_in)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            # A part of another draw may be invalid (a matrix without a factorisation). A whole result is not, so the
            # reference itself checks it, and that is no output.
            return fault.step is not None and not fault.index and fault.change is None
        if outputs is None:
            if fault.step is None or fault.index or fault.change is not None:
                return False
            return fault.step in self._long or self._may_differ(one, fault.step)
        excused = fault.rounds
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
            too_much = (most := one.bulks[place]) is not None and bulk(found, one.first[place]) > most
            if too_much or not bool((found <= one.allowed[place]).all()):
                return False
            excused = excused and output.dtype not in HALF and _is_one_rounding(found, right, output.dtype)
        return not excused

    def _with_fault(self, one: _Set, fault: _Fault, stand_in: list[torch.Tensor] | None) -> list[torch.Tensor] | None:
        """Return the reference's outputs with a fault; None if the fault does not change its step's result."""
        plain = self._oracle.models.plain
        if fault.step is None:
            return self._oracle.run(plain, self._replaced(one, fault))
        change: Watched | _Replaced = _Replaced(fault.index, stand_in)
        if fault.change is not None:
            change = Watched(fault.change, compares=fault.change is not omitted.without_least)
        if fault.twin is not None and not fault.least:
            with Calls(fault.twin, change):
                outputs = self._oracle.exact(self._oracle.models.wide, copied(one.values))
            if change.changed:  # otherwise the twin may take another step: a GPU has no fused attention in float64
                return [output.to(own.dtype) for output, own in zip(outputs, one.own, strict=True)]
        values = copied(one.values)
        with Calls(fault.step, change):
            outputs = self._oracle.run(plain, values)
        return outputs if change.changed else None

    def _wider(self, one: _Set, fault: _Fault) -> Iterator[_Fault]:
        """Yield the fault, then those in the widest parts with the same start or end that no output shows."""
        yield fault
        if not fault.part:
            return
        *others, own = fault.part
        if own.step is not None:
            return
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


class _Replaced:
    """Executes a call and replaces a part of its results; records whether that changed anything.

    Args:
        part: The part.
        stand_in: Other results; None for NaN.
    """

    def __init__(self, part: tuple[Any, ...], stand_in: list[torch.Tensor] | None) -> None:
        self.changed = False
        self._part = part
        self._stand_in = stand_in

    def __call__(self, call: Call) -> Any:
        """Execute the call."""
        result = call.func(*call.args, **call.kwargs)
        if not call.func._schema.is_mutable:  # it may be an operand, or overlap itself
            result = tree_map_only(torch.Tensor, torch.Tensor.clone, result)
        own = results(result)
        if self._stand_in is None:
            for one in own:
                if one.is_floating_point():
                    one[self._part] = torch.nan
                    self.changed = True
        elif [one.shape for one in own] == [one.shape for one in self._stand_in]:
            for one, other in zip(own, self._stand_in, strict=True):
                self.changed = self.changed or not same_bits(one[self._part], other[self._part])
                one[self._part] = other[self._part]
        return result


def _with_results(call: Call, to: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Execute a call and change its floating-point results."""

    def changed(value: torch.Tensor) -> torch.Tensor:
        return to(value) if value.is_floating_point() else value

    return tree_map_only(torch.Tensor, changed, call.func(*call.args, **call.kwargs))


def _as_large_as_may_be(value: Any) -> Any:
    """Return a floating-point input scaled so that its largest magnitude is its dtype's largest number."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return value
    limits = torch.finfo(value.dtype)
    return value / value.abs().amax().clamp(min=limits.tiny) * limits.max


def _quarters(dim: int, size: int) -> list[tuple[slice, ...]]:
    """Return the quarters of a dimension as indices of a tensor; none of one element."""
    count = min(_QUARTERS, size) if size > 1 else 0
    return [(*[slice(None)] * dim, slice(size * k // count, size * (k + 1) // count)) for k in range(count)]


def _parts(dim: int, size: int, draw: random.Random) -> list[tuple[slice, ...]]:
    """Return parts of a dimension: its quarters, and indices at equal distances."""
    strided = [slice(draw.randrange(step), None, step) for step in _STRIDES if size >= 2 * step]
    return _quarters(dim, size) + [(*[slice(None)] * dim, one) for one in strided]


def _words(part: tuple[slice, ...]) -> str:
    one, step = part[-1], f":{part[-1].step}" if part[-1].step else ""
    return f"[{one.start}:{'' if one.stop is None else one.stop}{step}] of dimension {len(part) - 1}"


def _of_parts(tensors: dict[int, torch.Tensor], draw: random.Random) -> list[_Fault]:
    """Return faults in parts of inputs, those of the largest inputs first."""
    found: list[_Fault] = []
    for place, value in sorted(tensors.items(), key=lambda pair: -pair[1].numel()):
        for dim, size in enumerate(value.shape):
            for part in _parts(dim, size, draw):
                text = f"{_words(part)} of input {place}, if it was another call's"
                found.append(_Fault(text, place=place, part=part))
    return found[:_MAX_PARTS]


def _is_one_rounding(error: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether each error is within one unit in the last place of the largest neighbouring element."""
    padding = (0, -right.numel() % _NEIGHBOURS)
    size = torch.nn.functional.pad(right.abs(), padding).view(-1, _NEIGHBOURS)
    largest = size.nan_to_num(0.0, posinf=0.0).amax(1, keepdim=True)
    found = torch.nn.functional.pad(error, padding).view(-1, _NEIGHBOURS)
    return bool((found <= torch.finfo(dtype).eps * largest).all())
