"""Which calls of a reference are tested for work that no output shows, and by which faults (`unseen` runs them)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from cudal1_worker.oracle import omitted
from cudal1_worker.oracle.calls import EXTREMES, Calls, Exits, chosen, outside, tensors, timed
from cudal1_worker.oracle.dependence import HALVES, PARTS, Part, Result
from cudal1_worker.oracle.flow import Alike, Flow, all_tensors
from cudal1_worker.oracle.steps import LOWER, OTHERS, Call
from cudal1_worker.oracle.tested import Fault, Step
from cudal1_worker.program.module import current_line

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

LITTLE = 0.1
"""Single elements may be omitted undetected in steps that together take less than this share of the tested calls' time:
a quarter of the elements is tried, so a program saves a fortieth. So may a smaller part of a step's operand if that is
what it saves, and steps whose earlier results do."""
_STRAIGHT = 16
"""Maximum functions in front of products that are tried on a straight line although they take little time."""


class Questions:
    """Chooses calls and faults.

    Args:
        oracle: The oracle.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.exit = ""
        """How values leave the operators, as `Exits` says; set by `steps`."""

    def steps(self, values: list[Any], draw: random.Random) -> dict[int, Step]:
        """Return the calls to test, by number."""
        model, tested = self._oracle.models.plain, dict[int, Step]()
        kept = {state.untyped_storage().data_ptr() for state in (*model.parameters(), *model.buffers())}
        with Exits() as exits:
            self._oracle.run(model, values)
        self.exit = exits.found
        if not self.exit and outside(partial(self._oracle.run, model), values, self._oracle.device) >= LITTLE:
            self.exit = "Python, or a library that Python calls"
        if self.exit:
            return tested
        seconds = timed(partial(self._oracle.run, model), values, self._oracle.device)
        wanted = chosen(seconds, draw)
        flow, straight = Flow(values, kept), dict[int, Step]()
        alike = defaultdict[object, Alike](Alike)

        def look(call: Call) -> Any:
            result = call.func(*call.args, **call.kwargs)
            found = all_tensors(result)
            kind = call.name, *(one.shape for one in (*tensors(call.args), *found))
            before = alike[kind].nearest(call.number, found)
            # A product behind a function may be merged with one before it, so its own time says nothing.
            merges = call.is_product
            if call.number in wanted and found:
                share = seconds[call.number] / sum(seconds)
                step = self._step(call, found, kept)
                of_state = step.computes and flow.is_of_state(call)
                tested[call.number] = replace(step, share=share, line=current_line(), of_state=of_state)
                if before is not None and not any(fault.extreme for fault in step.faults):
                    step.faults.append(Fault(f"{step.name}, if it was step {before + 1}'s", before=before))
                merges = step.computes and call.kind != "elementwise"
            if merges and not call.passes_on:
                straight.update(flow.curved(call.operands))
            flow.pass_on(call, found)
            return result

        with Calls(look):
            self._oracle.run(model, values)
        for number in draw.sample(sorted(straight), min(len(straight), _STRAIGHT)):
            tested.setdefault(number, straight[number]).faults.extend(straight[number].faults)
        return tested

    def _step(self, call: Call, result: list[torch.Tensor], kept: Container[int]) -> Step:
        """Return what can be asked about a call."""
        name, twin = call.title, call.place
        if call.name in EXTREMES and call.operands:
            faults = [Fault(f"{name}, which is only compared", twin=twin, extreme=True)]
            faults += [
                Fault(f"{name} {words}", change=change, twin=twin, extreme=True)
                for words, change in omitted.of_small(call, result[0])
            ]
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
        elif call.kind == "elementwise":
            lower = next(iter(OTHERS.get(call.dtype, ())), "")
        elif computes and call.dtype in OTHERS:
            lower = self._next_lower(call.dtype)
        for words, change in [*omitted.ways(call, kept), *omitted.of_small(call, result[0])]:
            faults.append(Fault(f"{name} {words}", change=change, rounds=change is omitted.in_eight_bits, twin=twin))
        for words, change in omitted.of_functions(call, result[0]):
            faults.append(Fault(f"{name} {words}", change=change, twin=twin, scattered=True))
        for words, change in omitted.kept(call, result[0]) if call.is_opaque else ():
            faults.append(Fault(f"{name} {words}", change=change, twin=twin, chooses=True))
        rounded = [(lower, factor) for factor in (call.product.factors if call.is_product else (None,)) if lower]
        if lower == "tf32":  # its roundings may be excused, and those of the next one not
            rounded.append(("bfloat16", None))
        for fault, factor in rounded:
            of = "" if factor is None else f"operand {factor} of "
            change = partial(Call.with_fault, fault=fault, factor=factor)
            faults.append(Fault(f"{of}{name} in {fault}", change=change, rounds=True))
        shapes = {operand: tuple(one.shape) for operand, one in parted.items()}
        terms = dict(zip(call.product.factors, call.along, strict=True)) if call.is_product and call.terms else {}
        computes = computes or call.is_product or call.kind == "elementwise"
        lower = lower if call.is_product and lower != "float8" else ""
        pointwise = call.kind == "elementwise"
        return Step(name, twin, faults, shapes, call.is_product, computes, pointwise, terms=terms, lower=lower)

    def of_part(
        self, k: int, step: Step, operand: int | str | Result, part: Part, mask: torch.Tensor
    ) -> Iterator[Fault]:
        """Yield the faults in a part of a call's result or operand; `mask` is where that is in the first set."""
        if any(fault.extreme for fault in step.faults):
            return
        if part.one_of > PARTS and step.share < LITTLE / PARTS * part.one_of:
            return
        of = f"{part.words} of {'' if isinstance(operand, Result) else f'operand {operand} of '}{step.name}"
        if part.one_of == HALVES:
            if step.is_pointwise:
                yield Fault(f"{of} left out", k, omitted.zeroed, twin=step.twin, part=part)
            return
        if not isinstance(operand, Result) and not (part.scattered and step.is_product):
            # No program multiplies single elements alone.
            left_out = partial(omitted.without, operand=operand)
            yield Fault(f"{of} left out", k, left_out, twin=step.twin, part=part)
        hidden = operand == Result(0) and not part.by_gradient  # nothing may need a further result
        if hidden or (part.scattered and not isinstance(operand, str)):
            yield Fault(f"{of}, if it was another call's", k, part=part)
        if part.by_gradient and not part.scattered and step.lower:
            yield from self._in_lower(of, k, step, operand, part, mask)

    def _in_lower(
        self, of: str, k: int, step: Step, operand: int | str | Result, part: Part, mask: torch.Tensor
    ) -> Iterator[Fault]:
        """Yield the rounding of a part of a product's result, or of the terms of all its results.

        It is the same part in all sets: which one shows roundings least depends on the data, and is little to gain. In
        half precision even the same rows may show little, and roundings of functions cancel in sums.
        """
        lower, change = step.lower, partial(omitted.lowered, part=mask)
        if isinstance(operand, int) and _are_terms(step, operand, mask, part):
            # TF32 in a quarter of the terms saves little, and many layers have such a quarter.
            lower = "bfloat16" if lower == "tf32" else lower
            change = partial(omitted.with_lower, operand=operand, part=mask)
        elif operand != Result(0):
            return
        yield Fault(f"{of} in {lower}", k, partial(change, fault=lower), rounds=True)

    def _next_lower(self, dtype: torch.dtype) -> str:
        own_tf32 = self._oracle.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
        return next(name for name in LOWER[dtype] if name != "tf32" or not own_tf32)


def _are_terms(step: Step, operand: int, mask: torch.Tensor, part: Part) -> bool:
    """Return whether a part of a factor is a quarter of the terms of all results."""
    summed = step.terms.get(operand)
    return summed is not None and part.one_of == PARTS and mask.shape[summed] == mask.numel()
