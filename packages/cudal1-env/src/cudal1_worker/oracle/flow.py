"""What flows where in a forward pass: which values depend on inputs or on state, and which results are near another."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from cudal1_worker.oracle import omitted
from cudal1_worker.oracle.steps import MULTIPLIES, Call
from cudal1_worker.oracle.tested import Fault, Step
from cudal1_worker.program.module import current_line

_REPEATED = 4
"""A loop has at least so many calls alike."""
_SAMPLED = 256
"""Elements of a result by which the earlier one nearest to it is found."""


def all_tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors in nested values that have memory of their own, which sparse ones have not."""
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor) and one.layout is torch.strided]


class Alike:
    """Samples of the last results of calls alike."""

    def __init__(self) -> None:
        self._last = deque[tuple[int, torch.Tensor]](maxlen=64)
        """Their numbers and samples."""

    def nearest(self, number: int, result: list[torch.Tensor]) -> int | None:
        """Return which earlier result is nearest to a call's, and keep this one; None for the first few calls.

        Of a loop over two sequences in turn, that is not the one before.
        """
        flat = result[0].reshape(-1) if result else torch.empty(0)
        own = flat[:: max(1, flat.numel() // _SAMPLED)].to(torch.complex128 if flat.is_complex() else torch.float64)
        near = None
        if len(self._last) + 1 >= _REPEATED:
            apart = (torch.stack([sample for _, sample in self._last]) - own).abs().nan_to_num().sum(1)
            near = self._last[int(apart.argmin())][0]
        self._last.append((number, own.clone()))
        return near


class Flow:
    """What depends on inputs or on state, and through which functions arithmetic alone leads from there; by memory.

    Behind the product of two tensors that both depend on inputs there are none of these: products on both sides of it
    are not one.

    Args:
        inputs: The reference's inputs.
        kept: Addresses of the model's state.
    """

    def __init__(self, inputs: list[Any], kept: Container[int]) -> None:
        self._kept = kept
        self._of_state = set[int]()
        """What depends on state."""
        self._steps = dict[int, dict[int, Step]]()
        """Functions by number, for all that depends on inputs."""
        for one in all_tensors(inputs):
            self._steps[one.untyped_storage().data_ptr()] = {}

    def curved(self, values: list[torch.Tensor]) -> dict[int, Step]:
        """Return the functions that lead to some tensors, by number."""
        found = dict[int, Step]()
        for one in all_tensors(values):
            found |= self._steps.get(one.untyped_storage().data_ptr(), {})
        return found

    def is_of_state(self, call: Call) -> bool:
        """Return whether something that a call reads depends on state."""
        places = {one.untyped_storage().data_ptr() for one in all_tensors((call.args, call.kwargs))}
        return any(place in self._kept or place in self._of_state for place in places)

    def pass_on(self, call: Call, result: list[torch.Tensor]) -> None:
        """Note a call's result."""
        given, of_state = all_tensors((call.args, call.kwargs)), self.is_of_state(call)
        depending = {one.untyped_storage().data_ptr() for one in given} & self._steps.keys()
        passes = call.passes_on and not (call.name in MULTIPLIES and len(depending) > 1)
        own = self.curved(given) if passes else {}
        straight = [("on a straight line", omitted.straightened)] if omitted.is_curved(call) else []
        if ways := straight or (omitted.passed(call, result[0]) if result else []):
            faults = [
                Fault(f"{call.title} {words}", change=change, twin=call.place, chooses=not straight)
                for words, change in ways
            ]
            own = own | {call.number: Step(call.title, call.place, faults, line=current_line())}
        for place in [one.untyped_storage().data_ptr() for one in result]:
            self._steps.pop(place, None)  # of a tensor that had this memory before
            self._of_state.discard(place)
            if depending:
                self._steps[place] = own
            if of_state:
                self._of_state.add(place)
