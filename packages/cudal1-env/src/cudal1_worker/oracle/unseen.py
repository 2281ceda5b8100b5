"""Finds work that a program could omit without a visible effect on outputs, for tasks that no audit covers.

Faults are injected into the reference, one in each run: an input, or the result of a call that takes time, is replaced
by that of another draw of the inputs; of both, and of a product's operands, the parts on which outputs depend least are
replaced or left out (`dependence`); one of a product's factors is rounded to the next lower precision, operand and
result of an elementwise function to bfloat16; and those of `omitted`. An output shows a fault if an element exceeds its
tolerance. If no output shows it, a program could omit this work and be correct, so the judge pays nothing above 1
(docs/decisions/003-gate-runs-programs.md). Nor does it if parts of a product's result come again for the other draw: a
program could keep a table of them (an integer input with few values).

Calls are drawn at random, in proportion to their time: to omit one that no run tests saves little. A fault that does
not change its step's result is excused, unless this is a long product, or differs for the largest inputs (a check that
passes on all draws). So is an input that does not change the float64 answer, and a part without a gradient from which
NaN would not reach the outputs. Lower precision is also excused if every output stays within one unit in the last place
of its neighbours. That of a function is not tested if an output has half precision, in which programs may round any
result, or integers, of which a few show little. The usual softmax only subtracts a maximum, so of maxima and minima the
one question is whether they are only compared: the float64 answer is the same to the last bit for another finite value,
and not for an infinite one.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any

import torch

from cudal1_worker import protocol as wire
from cudal1_worker.oracle import omitted
from cudal1_worker.oracle.calls import EXTREMES, Calls, chosen, tensors, timed
from cudal1_worker.oracle.dependence import Part, Result, Target, negligible_parts
from cudal1_worker.oracle.distributions import as_large_as_may_be
from cudal1_worker.oracle.faults import Watched
from cudal1_worker.oracle.models import copied, same_bits
from cudal1_worker.oracle.recurrence import SHARE, came_again
from cudal1_worker.oracle.reference_error import error_of, is_one_rounding
from cudal1_worker.oracle.steps import HALF, LOWER, OTHERS, Call, Place
from cudal1_worker.oracle.tolerance import Seen, bulk

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

_LONG = 0.1
"""A product that takes this share of the time must not have the same result for all inputs."""
_ACCEPTED = 0.2
"""Share of an output's elements whose tolerance may include another draw's value, if the two differ."""
_ROUNDINGS = 2.0**-24
"""Share of a tolerance that roundings in float64 do not reach."""
_LITTLE = 0.1
"""Single elements may be omitted undetected in steps that together take less than this share of the tested calls' time:
a quarter of the elements is tried, so a program saves a fortieth. So may a smaller part of a step's operand if that is
what it saves, and steps whose earlier results do."""
_REPEATED = 4
"""A loop has at least so many calls alike."""


@dataclass(frozen=True)
class _Fault:
    """One way to omit work."""

    text: str
    step: int | None = None
    """Number of the step; None for a fault in an input."""
    change: Callable[..., Any] | None = None
    """Executes the step with a fault, in `part` if there is one; None if a result is replaced."""
    rounds: bool = False
    """Whether `change` only rounds."""
    lower: str = ""
    """Precision to which it rounds."""
    twin: Place | None = None
    """Name and number of the step in the float64 twin, if the fault is tested there: a program may round less."""
    place: int = 0
    """Position of the input to replace."""
    part: Part | None = None
    """Part to replace by another draw's, or to leave out of an operand; all by default."""
    before: int | None = None
    """Number of an earlier call whose result the step returns."""
    extreme: bool = False
    """Whether the step is a maximum or minimum, and the fault is that it is only compared."""

    @property
    def operand(self) -> int | str | Result:
        """What of the step is changed."""
        return Result(0) if self.part is None or isinstance(self.part.target, int) else self.part.target[1]


@dataclass(frozen=True)
class _Step:
    """A call to test."""

    name: str
    twin: Place
    """Its place in the float64 twin."""
    faults: list[_Fault]
    """Those that concern the whole call."""
    shapes: dict[int | str | Result, tuple[int, ...]] = field(default_factory=dict[int | str | Result, tuple[int, ...]])
    """Shapes of its operands and results, whose parts are tested."""
    is_product: bool = False
    share: float = 0.0
    """Share of the forward pass's time."""


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
    parts: dict[Part, torch.Tensor]
    """Masks of parts of inputs, results and operands."""

    def parts_of(self, target: Target) -> list[Part]:
        """Return the parts of a tensor."""
        return [part for part in self.parts if part.target == target]

    def mask(self, fault: _Fault) -> torch.Tensor:
        """Return where a fault replaces values."""
        return self.answers[0].new_ones((), dtype=torch.bool) if fault.part is None else self.parts[fault.part]


class Unseen:
    """Finds work whose omission no output shows."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._tested: dict[int, _Step] = {}
        """Calls to test, by number."""
        self._large = 0
        """Number of elements of the largest input."""

    def unseen(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Return the first fault that no output shows on any of the sets of `seeds`; an empty text for none.

        Without `precision`, only omitted work is tested, because an audit tests lower precision itself.
        """
        try:
            return {"work": self._found(message["seeds"], precision=message["precision"]), "tried": True}
        except torch.OutOfMemoryError:
            return {"work": "what a call leaves out (there was too little memory to try)", "tried": False}

    def _found(self, seeds: list[int], *, precision: bool) -> str:
        self._choose(self._oracle.fresh_inputs(seeds[0], "own"), random.Random(seeds[0]))
        left: list[_Fault] | None = None
        accepting: str | None = None
        for seed in seeds:  # one set at a time: large tasks leave no memory for two
            one = self._set(seed)
            left = [fault for fault in self._faults(one) if precision or not fault.rounds] if left is None else left
            left = [fault for fault in left if fault.part is None or fault.part in one.parts]
            accepted = self._accepting(one)
            accepting = accepted if accepting in (None, accepted) else ""  # one set accepts a scalar by chance
            passed: list[_Fault] = []
            for step, faults in groupby(left, key=lambda fault: fault.step):
                stand_in = None if step is None else self._result(one.others, step)
                if step is not None and self._recurs(one, step, stand_in):
                    return f"parts of {self._tested[step].name}, if they were another call's at other places"
                passed += [fault for fault in faults if self._passes(one, fault, stand_in)]
                if seed == seeds[-1] and (accepting or not all(map(_is_scattered, passed))):
                    break
            left = self._that_save_time(passed)
            if not (accepting or left):
                break
        return accepting or next((fault.text for fault in left or []), "")

    def _that_save_time(self, passed: list[_Fault]) -> list[_Fault]:
        """Return faults without those in single elements of steps, if these steps take little time together."""
        steps = {fault.step for fault in passed if _is_scattered(fault)}
        theirs = sum(step.share for k, step in self._tested.items() if k in steps)
        tested = sum(step.share for step in self._tested.values())
        return passed if theirs >= _LITTLE * tested else [fault for fault in passed if not _is_scattered(fault)]

    def _choose(self, values: list[Any], draw: random.Random) -> None:
        """Choose the calls to test."""
        model, self._tested = self._oracle.models.plain, {}
        kept = {state.untyped_storage().data_ptr() for state in (*model.parameters(), *model.buffers())}
        calls = timed(partial(self._oracle.run, model), values, self._oracle.device)
        self._large = max((one.numel() for one in values if isinstance(one, torch.Tensor)), default=0)
        whole, wanted, own = sum(call.seconds for call in calls), chosen(calls, draw), copied(values)
        curved = dict[int, tuple[int, _Step]]()  # by address of the result
        alike = defaultdict[object, list[int]](list)

        def look(call: Call) -> Any:
            result = call.func(*call.args, **call.kwargs)
            alike[call.name, *(one.shape for one in (*tensors(call.args), *tensors(result)))].append(call.number)
            if call.number in wanted:
                share = calls[call.number].seconds / whole
                self._tested[call.number] = replace(self._step(call, tensors(result), kept), share=share)
            factors = call.operands if call.number in wanted and call.is_product else []
            for number, step in [curved.pop(one.data_ptr()) for one in factors if one.data_ptr() in curved]:
                self._tested.setdefault(number, step).faults.append(
                    _Fault(f"{step.name} on a straight line", change=omitted.straightened, twin=step.twin)
                )
            if omitted.is_curved(call):
                curved[tensors(result)[0].data_ptr()] = call.number, _Step(call.title, call.place, [])
            return result

        with Calls(change=look):
            self._oracle.run(model, own)
        loops = (pairwise(numbers) for numbers in alike.values() if len(numbers) >= _REPEATED)
        for before, number in chain.from_iterable(loops):
            if number in wanted and not any(fault.extreme for fault in self._tested[number].faults):
                words = f"{self._tested[number].name}, if it was step {before + 1}'s"
                self._tested[number].faults.append(_Fault(words, before=before))

    def _step(self, call: Call, result: list[torch.Tensor], kept: Container[int]) -> _Step:
        """Return what can be asked about a call."""
        name, twin = call.title, call.place
        if call.name in EXTREMES:
            faults = [_Fault(f"{name}, which is only compared", twin=twin, extreme=True)]
            return _Step(name, twin, faults, {Result(0): tuple(result[0].shape)})
        parted: dict[int | str | Result, torch.Tensor] = {
            Result(k): one for k, one in enumerate(result) if k == 0 or one.shape != result[0].shape
        }
        faults, lower = [_Fault(f"{name}, if it was another call's")], ""
        if call.is_product:
            lower, parted = self._next_lower(call.dtype), parted | omitted.operands(call)
        elif (call.kind == "elementwise" or call.name.startswith("special_")) and call.operands and self._are_exact():
            lower = next(iter(OTHERS.get(call.dtype, ())), "")
        elif call.is_opaque and call.dtype in OTHERS and self._are_exact():
            lower = self._next_lower(call.dtype)
        large = omitted.of_large(call, result[0]) if result[0].numel() >= self._large else []
        for words, change in [*omitted.ways(call, kept), *large]:
            faults.append(_Fault(f"{name} {words}", change=change, rounds=change is omitted.in_eight_bits, twin=twin))
        for factor in (call.product.factors if call.is_product else (None,)) if lower else ():
            change = partial(Call.with_fault, fault=lower, factor=factor)
            of = "" if factor is None else f"operand {factor} of "
            faults.append(_Fault(f"{of}{name} in {lower}", change=change, rounds=True, lower=lower))
        if lower == "tf32":  # its roundings may be excused, and those of the next one not
            change = partial(Call.with_fault, fault="bfloat16")
            faults.append(_Fault(f"{name} in bfloat16", change=change, rounds=True))
        return _Step(
            name, twin, faults, {operand: tuple(one.shape) for operand, one in parted.items()}, call.is_product
        )

    def _faults(self, one: _Set) -> list[_Fault]:
        found = list[_Fault]()
        for k, step in self._tested.items():
            found += [replace(fault, step=k) for fault in {fault.text: fault for fault in step.faults}.values()]
            for operand, part in ((name, part) for name in step.shapes for part in one.parts_of((step.twin, name))):
                found += self._partial(k, step, operand, part, one.parts[part])
        for place in (place for place, value in enumerate(one.values) if isinstance(value, torch.Tensor)):
            for part in (None, *(part for part in one.parts_of(place) if part.scattered or not part.by_gradient)):
                words = "" if part is None else f"{part.words} of "
                found.append(_Fault(f"{words}input {place}, if it was another call's", place=place, part=part))
        return found

    def _partial(
        self, k: int, step: _Step, operand: int | str | Result, part: Part, mask: torch.Tensor
    ) -> Iterator[_Fault]:
        """Yield the faults in a part of a call's result or operand; `mask` is where that is in the first set."""
        if any(fault.extreme for fault in step.faults):
            return
        if part.one_of > 4 and step.share < _LITTLE / 4 * part.one_of:
            return
        of = f"{part.words} of {'' if isinstance(operand, Result) else f'operand {operand} of '}{step.name}"
        if not isinstance(operand, Result):
            if not part.scattered:
                left_out = partial(omitted.without, operand=operand)
                yield _Fault(f"{of} left out", k, left_out, twin=step.twin, part=part)
            elif isinstance(operand, int):
                yield _Fault(f"{of}, if it was another call's", k, part=part)
        elif not part.by_gradient:
            if operand.number == 0:  # nothing may need a further result
                yield _Fault(f"{of}, if it was another call's", k, part=part)
        elif part.scattered:
            yield _Fault(f"{of}, if it was another call's", k, part=part)
        elif operand.number == 0 and step.is_product:
            # The same part in all sets: which one shows roundings least depends on the data, and is little to gain.
            # In half precision even the same rows may show little. Roundings of functions cancel in sums.
            for lower in {fault.lower for fault in step.faults} - {"", "float8"}:
                change = partial(omitted.lowered, fault=lower, part=mask)
                yield _Fault(f"{of} in {lower}", k, change, rounds=True, lower=lower)

    def _are_exact(self) -> bool:
        """Return whether no output has half precision, in which programs may round any result, or integers."""
        pairs = zip(self._oracle.profiles, self._oracle.limits, strict=True)
        return all(profile is not None and not limits.largest for profile, limits in pairs)

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
        allowed = self._allowed(answers, errors, nearby)
        shapes: dict[Target, tuple[int, ...]] = {
            (step.twin, operand): shape for step in self._tested.values() for operand, shape in step.shapes.items()
        }
        shapes |= {k: tuple(one.shape) for k, one in enumerate(values) if isinstance(one, torch.Tensor)}
        parts = negligible_parts(self._oracle, values, allowed, shapes)
        return _Set(values, answers, own, allowed, first, bulks, finite, others, parts)

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

    def _result(self, values: list[Any], step: int, operand: int | None = None) -> list[torch.Tensor]:
        """Return the result of a call for some inputs, or one of its operands."""
        found, values = list[torch.Tensor](), copied(values)

        def keep(call: Call) -> Any:
            result = call.func(*call.args, **call.kwargs)
            found[:] = [one.clone() for one in tensors(result if operand is None else call.args[operand])]
            return result

        with Calls(step, keep):
            self._oracle.run(self._oracle.models.plain, values)
        return found

    def _recurs(self, one: _Set, step: int, other: list[torch.Tensor] | None) -> bool:
        """Return whether a part of a product comes again for the other draw, at any place, but not all of it."""
        own = self._result(one.values, step) if self._tested[step].is_product else []
        if other is None or all(map(same_bits, own, other)):
            return False
        return any(came_again(one, two) > SHARE for one, two in zip(own, other, strict=True))

    def _may_differ(self, one: _Set, step: int) -> bool:
        """Return whether a call's result, the same for both draws, differs for the largest inputs."""
        try:
            largest = self._result(list(map(as_large_as_may_be, one.values)), step)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # the reference refuses them
            return False
        own = self._result(one.values, step)
        return not any(bool(new.isnan().any()) for new in largest) and not all(map(same_bits, own, largest))

    def _passes(self, one: _Set, fault: _Fault, stand_in: list[torch.Tensor] | None) -> bool:
        """Return whether a fault is unseen in the outputs and not excused."""
        if fault.extreme:
            return self._is_only_compared(one, fault)
        if not self._is_unseen(one, fault, stand_in):
            return False
        if fault.part is not None and fault.part.by_gradient:
            return True
        if fault.step is None:
            return self._changes_answer(one, fault)
        return fault.part is None or not self._is_dead(one, fault)

    def _is_only_compared(self, one: _Set, fault: _Fault) -> bool:
        """Return whether another finite value of a call leaves the float64 answer as it is, and an infinite one not."""

        def answers(to: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor] | None:
            try:
                with Calls(fault.twin, partial(omitted.with_results, to=to)):
                    return self._oracle.exact(self._oracle.models.wide, copied(one.values))
            except torch.OutOfMemoryError:
                raise
            except Exception:  # the reference itself checks it
                return None

        def are_same(others: list[torch.Tensor] | None) -> bool:
            return others is not None and all(map(same_bits, others, one.answers))

        finite = answers(lambda value: 1.25 * value + 0.25)
        if are_same(finite):
            assert fault.twin is not None
            if any(part.by_gradient for part in one.parts_of((fault.twin, Result(0)))):
                return False  # roundings of a softmax that a mean hides
            infinities = (partial(torch.full_like, fill_value=sign * torch.inf) for sign in (1, -1))
            return not all(are_same(answers(to)) for to in infinities)
        if finite is None or not all(answer.is_floating_point() for answer in finite):
            return False
        pairs = zip(map(error_of, finite, one.answers), one.allowed, strict=True)
        most = max(float((error / allowed).nan_to_num(torch.inf).max()) for error, allowed in pairs if error.numel())
        return _ROUNDINGS < most <= 1.0

    def _is_dead(self, one: _Set, fault: _Fault) -> bool:
        """Return whether NaN in a part of a call's result or operand reaches no output."""
        part, values = one.mask(fault), copied(one.values)
        run = partial(omitted.replaced, others=None) if fault.change is None else partial(fault.change, fill=torch.nan)
        try:
            with Calls(fault.step, partial(run, part=part)):
                outputs = self._oracle.run(self._oracle.models.plain, values)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # it reaches a check, or there is no NaN
            return False
        return all(map(same_bits, one.own, outputs))

    def _is_unseen(self, one: _Set, fault: _Fault, stand_in: list[torch.Tensor] | None = None) -> bool:
        """Return whether no output shows a fault and, for a fault in a step, whether it is not excused."""
        try:
            outputs = self._with_fault(one, fault, stand_in)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            # A part of another draw may be invalid (a matrix without a factorisation). A whole result is not, so the
            # reference itself checks it, and that is no output.
            return fault.step is not None and fault.part is None and fault.change is None and fault.before is None
        if outputs is None:
            if fault.before is not None:
                return True
            if fault.step is None or fault.part is not None or fault.change is not None:
                return False
            step = self._tested[fault.step]
            return (step.is_product and step.share >= _LONG) or self._may_differ(one, fault.step)
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
            excused = excused and output.dtype not in HALF and is_one_rounding(found, right, output.dtype)
        return not excused

    def _with_fault(self, one: _Set, fault: _Fault, stand_in: list[torch.Tensor] | None) -> list[torch.Tensor] | None:
        """Return the reference's outputs with a fault; None if the fault changes no value."""
        plain = self._oracle.models.plain
        if fault.step is None:
            values = self._replaced(one, fault)
            unchanged = same_bits(values[fault.place], one.values[fault.place])
            return None if unchanged else self._oracle.run(plain, values)
        if fault.before is not None:
            with Calls(change=omitted.Stale(fault.step, fault.before)):
                outputs = self._oracle.run(plain, copied(one.values))
            return None if all(map(same_bits, outputs, one.own)) else outputs
        if fault.change is None and isinstance(fault.operand, int):
            run = partial(omitted.exchanged, operand=fault.operand)
            run = partial(run, other=self._result(one.others, fault.step, fault.operand)[0])
        else:
            number = fault.operand.number if isinstance(fault.operand, Result) else 0
            run = fault.change or partial(omitted.replaced, others=stand_in, number=number)
        if fault.change is None or fault.part is not None:
            run = partial(run, part=one.mask(fault))
        # Float64 may have lost a factor that fades.
        fades = fault.change is not None and not fault.rounds and fault.part is not None and fault.part.by_gradient
        change = Watched(run, compares=not fades)
        if fault.twin is not None:
            with Calls(fault.twin, change):
                outputs = self._oracle.exact(self._oracle.models.wide, copied(one.values))
            if change.changed:  # otherwise the twin may take another step: a GPU has no fused attention in float64
                return [output.to(own.dtype) for output, own in zip(outputs, one.own, strict=True)]
        values = copied(one.values)
        with Calls(fault.step, change):
            outputs = self._oracle.run(plain, values)
        return outputs if change.changed else None

    def _changes_answer(self, one: _Set, fault: _Fault) -> bool:
        """Return whether the float64 answer changes if (a part of) an input is replaced with another draw's."""
        answers = self._oracle.exact(self._oracle.models.wide, self._replaced(one, fault))
        return not all(torch.equal(new, old) for new, old in zip(answers, one.answers, strict=True))

    def _replaced(self, one: _Set, fault: _Fault) -> list[Any]:
        """Return the inputs with (a part of) one replaced with another draw's."""
        values = copied(one.values)
        value = values[fault.place]
        value.copy_(torch.where(one.mask(fault), one.others[fault.place], value))
        return values


def _is_scattered(fault: _Fault) -> bool:
    """Return whether a fault saves a part of the time only with others like it."""
    return fault.before is not None or (fault.step is not None and fault.part is not None and fault.part.scattered)
