"""Which calls of a reference are tested for work that no output shows, and by which faults (`unseen` runs them)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import torch

from cudal1_worker.oracle import omitted
from cudal1_worker.oracle.calls import EXTREMES, Calls, chosen, tensors, timed
from cudal1_worker.oracle.dependence import PARTS, Part, Result
from cudal1_worker.oracle.steps import LOWER, OTHERS, Call, Place
from cudal1_worker.program.module import current_line

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

LITTLE = 0.1
"""Single elements may be omitted undetected in steps that together take less than this share of the tested calls' time:
a quarter of the elements is tried, so a program saves a fortieth. So may a smaller part of a step's operand if that is
what it saves, and steps whose earlier results do."""
_REPEATED = 4
"""A loop has at least so many calls alike."""


@dataclass(frozen=True)
class Fault:
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
class Step:
    """A call to test."""

    name: str
    twin: Place
    """Its place in the float64 twin."""
    faults: list[Fault]
    """Those that concern the whole call."""
    shapes: dict[int | str | Result, tuple[int, ...]] = field(default_factory=dict[int | str | Result, tuple[int, ...]])
    """Shapes of its operands and results, whose parts are tested."""
    is_product: bool = False
    terms: dict[int, int] = field(default_factory=dict[int, int])
    """Summed dimension of each factor of a product, by its position, if a part of the terms can be taken."""
    share: float = 0.0
    """Share of the forward pass's time."""
    line: int | None = None
    """Line of the task's program that makes the call."""

    def located(self, text: str) -> str:
        """Return a text about the step, followed by its line."""
        return text if self.line is None else f"{text} (line {self.line})"


class Questions:
    """Chooses calls and faults.

    Args:
        oracle: The oracle.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._large = 0
        """Number of elements of the largest input."""
        self.outside = 0.0
        """Share of the forward pass's time in no call; set by `steps`."""

    def steps(self, values: list[Any], draw: random.Random) -> dict[int, Step]:
        """Return the calls to test, by number."""
        model, tested = self._oracle.models.plain, dict[int, Step]()
        kept = {state.untyped_storage().data_ptr() for state in (*model.parameters(), *model.buffers())}
        calls, self.outside = timed(partial(self._oracle.run, model), values, self._oracle.device)
        self._large = max((one.numel() for one in values if isinstance(one, torch.Tensor)), default=0)
        whole, wanted = sum(call.seconds for call in calls), chosen(calls, draw)
        curved = dict[int, tuple[int, Step]]()  # by address of the result
        alike = defaultdict[object, list[int]](list)

        def look(call: Call) -> Any:
            result = call.func(*call.args, **call.kwargs)
            alike[call.name, *(one.shape for one in (*tensors(call.args), *tensors(result)))].append(call.number)
            if call.number in wanted:
                share = calls[call.number].seconds / whole
                step = self._step(call, tensors(result), kept)
                tested[call.number] = replace(step, share=share, line=current_line())
            factors = call.operands if call.number in wanted and call.is_product else []
            for number, step in [curved.pop(one.data_ptr()) for one in factors if one.data_ptr() in curved]:
                tested.setdefault(number, step).faults.append(
                    Fault(f"{step.name} on a straight line", change=omitted.straightened, twin=step.twin)
                )
            if omitted.is_curved(call):
                step = Step(call.title, call.place, [], line=current_line())
                curved[tensors(result)[0].data_ptr()] = call.number, step
            return result

        with Calls(change=look):
            self._oracle.run(model, values)
        loops = (pairwise(numbers) for numbers in alike.values() if len(numbers) >= _REPEATED)
        for before, number in chain.from_iterable(loops):
            if number in wanted and not any(fault.extreme for fault in tested[number].faults):
                words = f"{tested[number].name}, if it was step {before + 1}'s"
                tested[number].faults.append(Fault(words, before=before))
        return tested

    def _step(self, call: Call, result: list[torch.Tensor], kept: Container[int]) -> Step:
        """Return what can be asked about a call."""
        name, twin = call.title, call.place
        if call.name in EXTREMES:
            faults = [Fault(f"{name}, which is only compared", twin=twin, extreme=True)]
            return Step(name, twin, faults, {Result(0): tuple(result[0].shape)})
        parted: dict[int | str | Result, torch.Tensor] = {
            Result(k): one for k, one in enumerate(result) if k == 0 or one.shape != result[0].shape
        }
        faults, lower = [Fault(f"{name}, if it was another call's")], ""
        computes = call.is_opaque and not call.only_moves(result)
        if call.is_product or computes:
            parted |= omitted.operands(call)
        if call.is_product:
            lower = self._next_lower(call.dtype)
        elif (call.kind == "elementwise" or call.name.startswith("special_")) and call.operands and self._are_exact():
            lower = next(iter(OTHERS.get(call.dtype, ())), "")
        elif computes and call.dtype in OTHERS and self._are_exact():
            lower = self._next_lower(call.dtype)
        large = omitted.of_large(call, result[0]) if result[0].numel() >= self._large else []
        for words, change in [*omitted.ways(call, kept), *omitted.of_small(call, result[0]), *large]:
            faults.append(Fault(f"{name} {words}", change=change, rounds=change is omitted.in_eight_bits, twin=twin))
        for factor in (call.product.factors if call.is_product else (None,)) if lower else ():
            change = partial(Call.with_fault, fault=lower, factor=factor)
            of = "" if factor is None else f"operand {factor} of "
            faults.append(Fault(f"{of}{name} in {lower}", change=change, rounds=True, lower=lower))
        if lower == "tf32":  # its roundings may be excused, and those of the next one not
            change = partial(Call.with_fault, fault="bfloat16")
            faults.append(Fault(f"{name} in bfloat16", change=change, rounds=True))
        shapes = {operand: tuple(one.shape) for operand, one in parted.items()}
        terms = dict(zip(call.product.factors, call.along, strict=True)) if call.is_product and call.terms else {}
        return Step(name, twin, faults, shapes, call.is_product, terms)

    def of_part(
        self, k: int, step: Step, operand: int | str | Result, part: Part, mask: torch.Tensor
    ) -> Iterator[Fault]:
        """Yield the faults in a part of a call's result or operand; `mask` is where that is in the first set."""
        if any(fault.extreme for fault in step.faults):
            return
        if part.one_of > PARTS and step.share < LITTLE / PARTS * part.one_of:
            return
        of = f"{part.words} of {'' if isinstance(operand, Result) else f'operand {operand} of '}{step.name}"
        if not isinstance(operand, Result):
            if not (part.scattered and step.is_product):  # no program multiplies single elements alone
                left_out = partial(omitted.without, operand=operand)
                yield Fault(f"{of} left out", k, left_out, twin=step.twin, part=part)
                # Some terms, for all results. TF32 in a quarter of them saves little; many layers have such a quarter.
                if isinstance(operand, int) and part.by_gradient and _are_terms(step, operand, mask, part):
                    change = partial(omitted.with_lower, operand=operand, part=mask)
                    yield from self._in_lower(of, k, step, change, tf32="bfloat16")
            if part.scattered and isinstance(operand, int):
                yield Fault(f"{of}, if it was another call's", k, part=part)
        elif not part.by_gradient:
            if operand.number == 0:  # nothing may need a further result
                yield Fault(f"{of}, if it was another call's", k, part=part)
        elif part.scattered:
            yield Fault(f"{of}, if it was another call's", k, part=part)
        elif operand.number == 0 and step.is_product:
            yield from self._in_lower(of, k, step, partial(omitted.lowered, part=mask))

    def _in_lower(self, of: str, k: int, step: Step, change: Callable[..., Any], tf32: str = "tf32") -> Iterator[Fault]:
        """Yield the roundings of a part of a product's result or operand; `change` takes the precision as `fault`.

        Args:
            of: Words for the part.
            k: Number of the step.
            step: The step.
            change: Executes it.
            tf32: Precision in place of TF32.
        """
        # The same part in all sets: which one shows roundings least depends on the data, and is little to gain.
        # In half precision even the same rows may show little. Roundings of functions cancel in sums.
        if step.is_product:
            for lower in {tf32 if fault.lower == "tf32" else fault.lower for fault in step.faults} - {"", "float8"}:
                yield Fault(f"{of} in {lower}", k, partial(change, fault=lower), rounds=True, lower=lower)

    def _are_exact(self) -> bool:
        """Return whether no output has half precision, in which programs may round any result, or integers."""
        pairs = zip(self._oracle.profiles, self._oracle.limits, strict=True)
        return all(profile is not None and not limits.largest for profile, limits in pairs)

    def _next_lower(self, dtype: torch.dtype) -> str:
        own_tf32 = self._oracle.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
        return next(name for name in LOWER[dtype] if name != "tf32" or not own_tf32)


def is_scattered(fault: Fault) -> bool:
    """Return whether a fault saves a part of the time only with others like it."""
    return fault.before is not None or (fault.step is not None and fault.part is not None and fault.part.scattered)


def _are_terms(step: Step, operand: int, mask: torch.Tensor, part: Part) -> bool:
    """Return whether a part of a factor is a quarter of the terms of all results."""
    summed = step.terms.get(operand)
    return summed is not None and part.one_of == PARTS and mask.shape[summed] == mask.numel()
