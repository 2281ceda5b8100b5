"""Finds work that a program could omit without a visible effect on outputs, for tasks that no audit covers.

Faults are injected into the reference, one in each run: an input, or the result of a call that takes time, is replaced
by that of another draw of the inputs; of both, and of operands, the parts on which outputs depend least are replaced or
left out (`dependence`); one of a product's factors is rounded to the next lower precision, the terms that matter least
to bfloat16, operand and result of an elementwise function likewise; and those of `omitted`. An output shows a fault if
an element exceeds its tolerance. If no output shows it, a program could omit this work and be correct, so the judge
pays nothing above 1 (docs/decisions/003-gate-runs-programs.md). Nor does it if parts of a product's result come again
for the other draw: a program could keep a table of them (an integer input with few values).

Calls are drawn at random, in proportion to their time: to omit one that no run tests saves little. A fault that does
not change its step's result is excused, unless this is a long product, or differs for the largest inputs (a check that
passes on all draws). So is an input that does not change the float64 answer, and a part without a gradient from which
NaN would not reach the outputs. Lower precision is also excused if every output stays within one unit in the last place
of its neighbours. For that of a function, only outputs count that are neither integers, of which a few show little, nor
in half precision, in which programs may round any result. The usual softmax only subtracts a maximum, so of maxima and
minima the one question is whether they are only compared: the float64 answer is the same to the last bit for another
finite value, and not for an infinite one. A reference whose values leave the operators is not tested, but doubted.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from cudal1_worker import protocol as wire
from cudal1_worker.oracle import omitted
from cudal1_worker.oracle.calls import Calls, tensors
from cudal1_worker.oracle.dependence import Part, Result, Target, negligible_parts
from cudal1_worker.oracle.distributions import as_large_as_may_be
from cudal1_worker.oracle.faults import Watched
from cudal1_worker.oracle.models import as_dtype, copied, same_bits
from cudal1_worker.oracle.questions import LITTLE, Questions
from cudal1_worker.oracle.recurrence import SHARE, came_again
from cudal1_worker.oracle.reference_error import error_of, is_one_rounding
from cudal1_worker.oracle.steps import HALF, Call, Place
from cudal1_worker.oracle.tested import Fault, Step, is_scattered
from cudal1_worker.oracle.tolerance import Seen, bulk
from cudal1_worker.program.module import Attempt, lacks_memory

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

_LONG = 0.1
"""A product that takes this share of the time must not have the same result for all inputs."""
_ACCEPTED = 0.2
"""Share of an output's elements whose tolerance may include another draw's value, if the two differ."""
_LARGER = 1e4
"""Factor of inputs for which a choice may choose otherwise."""
_ROUNDINGS = 2.0**-24
"""Share of a tolerance that roundings in float64 do not reach."""


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

    def wide(self) -> list[Any]:
        """Return the values in float64: a mode that counts calls must not see them converted."""
        return [as_dtype(value, torch.float64) for value in self.values]

    def parts_of(self, target: Target) -> list[Part]:
        """Return the parts of a tensor."""
        return [part for part in self.parts if part.target == target]

    def mask(self, fault: Fault) -> torch.Tensor:
        """Return where a fault replaces values."""
        return self.answers[0].new_ones((), dtype=torch.bool) if fault.part is None else self.parts[fault.part]


def _is_choice(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_floating_point()


def _without_integers(value: Any) -> Any:
    is_integer = isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()
    return torch.zeros_like(value) if is_integer else value


@contextlib.contextmanager
def _scaled(model: Any, factor: float) -> Iterator[None]:
    """Multiply a model's floating-point parameters by a factor meanwhile."""
    found = [one for one in model.parameters() if one.is_floating_point()] if factor != 1.0 else []
    kept = [one.detach().clone() for one in found]
    with torch.no_grad():
        for one in found:
            one.mul_(factor)
    try:
        yield
    finally:
        with torch.no_grad():
            for one, own in zip(found, kept, strict=True):
                one.copy_(own)


class _OutOfTimeError(Exception):
    """The search has reached its limit."""


class Unseen:
    """Finds work whose omission no output shows."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._tested: dict[int, Step] = {}
        """Calls to test, by number."""
        self._same = set[int]()
        """Steps of which something depends on the model's state, and that have the same results for both draws."""
        self._questions = Questions(oracle)
        self._end = math.inf
        """When the search ends, by `time.monotonic`."""
        self._apart = set[Place]()
        """Steps that the float64 twin does not have: it executes a recurrent layer by steps of other operators."""

    def unseen(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Return the first fault that no output shows on any of the sets of `seeds`; an empty text for none.

        The search ends after `limit_s` seconds.
        """
        self._end = time.monotonic() + message["limit_s"]
        try:
            return {"work": self._found(message["seeds"]), "tried": True}
        except _OutOfTimeError:
            return {"work": "what a call leaves out (there was too little time to try)", "tried": True}
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            return {"work": "what a call leaves out (there was too little memory to try)", "tried": False}

    def _found(self, seeds: list[int]) -> str:
        self._same.clear()
        self._tested = self._questions.steps(self._oracle.fresh_inputs(seeds[0], "own"), random.Random(seeds[0]))
        if self._questions.exit:
            return f"work outside of operators, in which no fault can be tried ({self._questions.exit})"
        left: list[Fault] | None = None
        accepting: str | None = None
        for seed in seeds:  # one set at a time: large tasks leave no memory for two
            one = self._set(seed)
            left = self._faults(one) if left is None else left
            left = [fault for fault in left if fault.part is None or fault.part in one.parts]
            accepted = self._accepting(one)
            accepting = accepted if accepting in (None, accepted) else ""  # one set accepts a scalar by chance
            passed: list[Fault] = []
            for step, faults in groupby(left, key=lambda fault: fault.step):
                stand_in = None if step is None else self._result(one.others, step)
                if step is not None and self._recurs(one, step, stand_in):
                    tested = self._tested[step]
                    return tested.located(f"parts of {tested.name}, if they were another call's at other places")
                passed += [fault for fault in faults if self._passes(one, fault, stand_in)]
                if seed == seeds[-1] and (accepting or not all(map(is_scattered, passed))):
                    break
            left = self._that_save_time(passed)
            if not (accepting or left):
                break
        if accepting or not left:
            return accepting or self._constant()
        return left[0].text if left[0].step is None else self._tested[left[0].step].located(left[0].text)

    def _constant(self) -> str:
        """Return the longest of the steps whose results are the same for all draws, if they take much time together."""
        steps = [self._tested[step] for step in self._same]
        if sum(step.share for step in steps) < LITTLE:
            return ""
        longest = max(steps, key=lambda step: step.share)
        return longest.located(f"work that is the same for all inputs, such as {longest.name}")

    def _that_save_time(self, passed: list[Fault]) -> list[Fault]:
        """Return faults without those in single elements and repeated steps, if these take little time together."""
        steps = {fault.step for fault in passed if is_scattered(fault)}
        theirs = sum(step.share for k, step in self._tested.items() if k in steps)
        tested = sum(step.share for step in self._tested.values())
        return passed if theirs >= LITTLE * tested else [fault for fault in passed if not is_scattered(fault)]

    def _faults(self, one: _Set) -> list[Fault]:
        found = list[Fault]()
        for k, step in self._tested.items():
            found += [replace(fault, step=k) for fault in {fault.text: fault for fault in step.faults}.values()]
            for operand, part in ((name, part) for name in step.shapes for part in one.parts_of((step.twin, name))):
                found += self._questions.of_part(k, step, operand, part, one.parts[part])
        for place in (place for place, value in enumerate(one.values) if isinstance(value, torch.Tensor)):
            for part in (None, *(part for part in one.parts_of(place) if part.scattered or not part.by_gradient)):
                words = "" if part is None else f"{part.words} of "
                found.append(Fault(f"{words}input {place}, if it was another call's", place=place, part=part))
        return found

    def _set(self, seed: int) -> _Set:
        values, others = (self._oracle.fresh_inputs(one, "own") for one in (seed, seed ^ 1))
        # A program may keep what each value of an integer alone (which of eight layers) makes of the weights.
        others = [one if _is_choice(one) else other for one, other in zip(values, others, strict=True)]
        answers = self._oracle.exact(self._oracle.models.wide, values)
        own, errors = self._oracle.errors(self._oracle.models, values, answers)
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
        outputs = self._oracle.run(self._oracle.models.plain, one.others)
        for place, (output, answer) in enumerate(zip(outputs, one.answers, strict=True)):
            if answer.is_floating_point() and one.finite[place] and answer.numel():
                other = output.reshape(-1) != one.own[place].reshape(-1)
                accepted = (error_of(output, answer) <= one.allowed[place]) & other
                if int(accepted.sum()) > _ACCEPTED * answer.numel():
                    return f"that elements of output {place} are another call's"
        return ""

    def _result(self, values: list[Any], step: int, operand: int | None = None) -> list[torch.Tensor]:
        """Return the result of a call for some inputs, or one of its operands."""
        found = list[torch.Tensor]()

        def keep(call: Call) -> Any:
            result = call.func(*call.args, **call.kwargs)
            found[:] = [one.clone() for one in tensors(result if operand is None else call.args[operand])]
            return result

        with Calls(keep, step):
            self._oracle.run(self._oracle.models.plain, values)
        return found

    def _recurs(self, one: _Set, step: int, other: list[torch.Tensor] | None) -> bool:
        """Return whether a part of a product, or of what an opaque call computes, comes again, but not all of it."""
        own = self._result(one.values, step) if self._tested[step].computes else []
        if other is None or all(map(same_bits, own, other)):
            if own and self._tested[step].of_state:
                self._same.add(step)
            return False
        self._same.discard(step)
        pairs = [(one, two) for one, two in zip(own, other, strict=True) if one.is_floating_point() or one.is_complex()]
        return any(came_again(one, two) > SHARE for one, two in pairs)

    def _may_differ(self, one: _Set, step: int) -> bool:
        """Return whether a call's result, the same for both draws, differs for the largest inputs.

        If it takes much time, it may also differ for zeros as integers: the largest of many is the same for all draws.
        """
        moves, own = [as_large_as_may_be], self._result(one.values, step)
        moves += [_without_integers] if self._tested[step].share >= LITTLE else []
        for move in moves:
            moved = list[torch.Tensor]()
            with Attempt():
                moved = self._result(list(map(move, one.values)), step)
            if not any(bool(new.isnan().any()) for new in moved) and not all(map(same_bits, own, moved)):
                return True
        return False

    def _chooses_otherwise(self, one: _Set, fault: Fault) -> bool:
        """Return whether a choice, its operand for both draws, is not for larger inputs or weights of either sign.

        Behind a norm only weights make values larger.
        """
        assert fault.change is not None
        change, model = Watched(fault.change), self._oracle.models.plain
        for inputs, weights in ((_LARGER, 1.0), (-_LARGER, 1.0), (1.0, _LARGER**0.5), (1.0, -(_LARGER**0.5))):
            values = [inputs * x if torch.is_tensor(x) and x.is_floating_point() else x for x in one.values]
            # The reference may refuse them.
            refused = contextlib.suppress(ValueError, ArithmeticError, RuntimeError)
            with _scaled(model, weights), refused, Calls(change, fault.step):
                self._oracle.run(model, values)
        return change.changed

    def _passes(self, one: _Set, fault: Fault, stand_in: list[torch.Tensor] | None) -> bool:
        """Return whether a fault is unseen in the outputs and not excused."""
        if time.monotonic() > self._end:
            raise _OutOfTimeError
        if fault.extreme:
            if fault.change is None:
                return self._is_only_compared(one, fault)
            return self._effect(one, fault) > 1.0 and self._is_unseen(one, fault)
        if not self._is_unseen(one, fault, stand_in):
            return False
        if fault.part is not None and fault.part.by_gradient:
            return True
        if fault.step is None:
            return self._changes_answer(one, fault)
        return fault.part is None or not self._is_dead(one, fault)

    def _is_only_compared(self, one: _Set, fault: Fault) -> bool:
        """Return whether another finite value of a call leaves the float64 answer as it is, and an infinite one not."""
        most = self._effect(one, fault)
        if most == 0.0:
            assert fault.twin is not None
            if any(part.by_gradient for part in one.parts_of((fault.twin, Result(0)))):
                return False  # roundings of a softmax that a mean hides
            infinities = (partial(torch.full_like, fill_value=sign * torch.inf) for sign in (1, -1))
            return any(self._effect(one, fault, to) > 0.0 for to in infinities)
        return _ROUNDINGS < most <= 1.0

    def _effect(
        self, one: _Set, fault: Fault, to: Callable[[torch.Tensor], torch.Tensor] = lambda value: 1.25 * value + 0.25
    ) -> float:
        """Return the largest change of the float64 answer, over its tolerance, with other results of a fault's call.

        It is infinite if the reference refuses them, or another integer is the answer.
        """
        values, others = one.wide(), list[torch.Tensor]()
        with Attempt(), Calls(partial(omitted.with_results, to=to), fault.twin):
            others = self._oracle.exact(self._oracle.models.wide, values)
        if not others:  # the reference itself checks it
            return math.inf
        if all(map(same_bits, others, one.answers)):
            return 0.0
        if not all(answer.is_floating_point() for answer in others):
            return math.inf
        pairs = zip(map(error_of, others, one.answers), one.allowed, strict=True)
        return max(float((error / allowed).nan_to_num(torch.inf).max()) for error, allowed in pairs if error.numel())

    def _is_dead(self, one: _Set, fault: Fault) -> bool:
        """Return whether outputs are the same to the last bit with NaN in a part of a call's result or operand.

        For a result, it also suffices if they are for values far above its largest and far below its smallest.
        """
        if fault.change is not None:
            return self._is_same(one, fault, partial(fault.change, fill=torch.nan))
        runs = [partial(omitted.replaced, others=None, end=end) for end in (None, omitted.far_above, omitted.far_below)]
        return self._is_same(one, fault, runs[0]) or all(self._is_same(one, fault, run) for run in runs[1:])

    def _is_same(self, one: _Set, fault: Fault, run: Callable[..., Any]) -> bool:
        """Return whether outputs are the same to the last bit with `run` in a part of the fault's call."""
        with Attempt(), Calls(partial(run, part=one.mask(fault)), fault.step):  # it may reach a check
            return all(map(same_bits, one.own, self._oracle.run(self._oracle.models.plain, one.values)))
        return False

    def _is_unseen(self, one: _Set, fault: Fault, stand_in: list[torch.Tensor] | None = None) -> bool:
        """Return whether no output shows a fault and, for a fault in a step, whether it is not excused."""
        try:
            outputs = self._with_fault(one, fault, stand_in)
        except Exception as error:
            if lacks_memory(error):
                raise
            # A part of another draw may be invalid (a matrix without a factorisation). A whole result is not, so the
            # reference itself checks it, and that is no output.
            return fault.step is not None and fault.part is None and fault.change is None and fault.before is None
        if outputs is None:
            if fault.before is not None:
                return True
            if fault.chooses:
                return self._chooses_otherwise(one, fault)
            if fault.step is None or fault.part is not None or fault.change is not None:
                return False
            step = self._tested[fault.step]
            if stand_in and tuple(stand_in[0].shape) != step.shapes[Result(0)]:
                return False  # as many elements as the data say: another draw's cannot replace them
            return (step.is_product and step.share >= _LONG) or self._may_differ(one, fault.step)
        excused = fault.rounds
        of_function = fault.step is not None and not self._tested[fault.step].is_product
        for place, (output, answer) in enumerate(zip(outputs, one.answers, strict=True)):
            found, right = error_of(output, answer), answer.reshape(-1)
            if not answer.is_floating_point():
                # An unchanged integer does not show how near it was to changing.
                excused = excused and of_function
                if not bool(((found == 0) | (output.reshape(-1) == one.own[place].reshape(-1))).all()):
                    return False
                continue
            if not one.finite[place]:
                same = (output.reshape(-1) == right) | (output.reshape(-1).isnan() & right.isnan())
                found = torch.where(right.isfinite(), found, torch.where(same, 0.0, torch.inf))
            too_much = (most := one.bulks[place]) is not None and bulk(found, one.first[place]) > most
            if too_much or not bool((found <= one.allowed[place]).all()):
                return False
            is_half = output.dtype in HALF or bool(self._oracle.limits[place].largest)
            if not (of_function and (is_half or same_bits(output, one.own[place]))):
                excused = excused and output.dtype not in HALF and is_one_rounding(found, right, output.dtype)
        return not excused

    def _with_fault(self, one: _Set, fault: Fault, stand_in: list[torch.Tensor] | None) -> list[torch.Tensor] | None:
        """Return the reference's outputs with a fault; None if the fault changes no value."""
        plain = self._oracle.models.plain
        if fault.step is None:
            values = self._replaced(one, fault)
            unchanged = same_bits(values[fault.place], one.values[fault.place])
            return None if unchanged else self._oracle.run(plain, values)
        if fault.before is not None:
            with Calls(omitted.Stale(fault.step, fault.before)):
                outputs = self._oracle.run(plain, one.values)
            return None if all(map(same_bits, outputs, one.own)) else outputs
        if fault.change is None and isinstance(fault.operand, int):
            run = partial(omitted.exchanged, operand=fault.operand)
            run = partial(run, other=self._result(one.others, fault.step, fault.operand)[0])
        else:
            number = fault.operand.number if isinstance(fault.operand, Result) else 0
            run = fault.change or partial(omitted.replaced, others=stand_in, number=number)
        if fault.change is None or fault.part is not None:
            run = partial(run, part=one.mask(fault))
        # Float64 may have lost a factor that fades, so that the result hides the fault.
        fades = fault.change is not None and not fault.rounds and fault.part is not None and fault.part.by_gradient
        watched = Watched(run)
        change = run if fades else watched
        if fault.twin is not None and fault.twin not in self._apart:
            values = one.wide()
            with Calls(change, fault.twin) as calls:
                outputs = self._oracle.exact(self._oracle.models.wide, values)
            if calls.is_done and (fades or watched.changed):
                return [output.to(own.dtype) for output, own in zip(outputs, one.own, strict=True)]
            if not calls.is_done:  # a GPU has no fused attention in float64 either
                self._apart.add(fault.twin)
        with Calls(change, fault.step):
            outputs = self._oracle.run(plain, one.values)
        return outputs if fades or watched.changed else None

    def _changes_answer(self, one: _Set, fault: Fault) -> bool:
        """Return whether the float64 answer changes if (a part of) an input is replaced with another draw's."""
        answers = self._oracle.exact(self._oracle.models.wide, self._replaced(one, fault))
        return not all(torch.equal(new, old) for new, old in zip(answers, one.answers, strict=True))

    def _replaced(self, one: _Set, fault: Fault) -> list[Any]:
        """Return the inputs with (a part of) one replaced with another draw's."""
        values = copied(one.values)
        value = values[fault.place]
        value.copy_(torch.where(one.mask(fault), one.others[fault.place], value))
        return values
