"""Products whose lower precision no output shows, found on a task that no audit covers.

The reference runs once for each of its products, with the product's factors rounded to the next lower precision. An
output shows that if an element is beyond its tolerance. Where no output does, a program could multiply in that
precision and be correct, so the judge pays nothing above 1 (docs/decisions/003-gate-runs-programs.md). Two cases are
excused: the rounding changes no result of the product, or every output is within one unit in the last place of its
neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cudal1_worker import protocol as wire
from cudal1_worker.oracle.faults import MIN_SHARE, Injection, Step, Watched
from cudal1_worker.oracle.models import copied
from cudal1_worker.oracle.reference_error import error_of
from cudal1_worker.oracle.steps import LOWER

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

MAX_PRODUCTS = 8
"""Products that are tried, spread over the forward pass."""
_NEIGHBOURS = 16
"""Elements, next to each other, whose largest magnitude is the measure of one rounding."""


class UnseenPrecision:
    """Finds such products."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def unseen(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Return the first product that no output shows on any of the sets of `seeds`; an empty text for none."""
        try:
            return {"product": next(iter(self._found(message["seeds"])), "")}
        except torch.OutOfMemoryError:
            return {"product": "a product in lower precision (there was too little memory to try)"}

    def _found(self, seeds: list[int]) -> list[str]:
        left: dict[int, tuple[str, str]] | None = None
        for seed in seeds:  # one set at a time: large tasks leave no memory for two
            values, answers, own, errors = self._set(seed)
            if left is None:
                with Injection() as counted:
                    self._oracle.run(self._oracle.models.plain, copied(values))
                steps = counted.steps
                left = {k: (steps[k].name, self._next_lower(steps[k].dtype)) for k in _chosen(steps)}
            left = {k: one for k, one in left.items() if self._passes(values, answers, own, errors, k, one[1])}
        return [f"product {number + 1} ({name}) in {fault}" for number, (name, fault) in (left or {}).items()]

    def _next_lower(self, dtype: torch.dtype) -> str:
        own_tf32 = self._oracle.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
        return next(name for name in LOWER[dtype] if name != "tf32" or not own_tf32)

    def _set(self, seed: int) -> tuple[list[Any], list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Inputs, float64 answers, the reference's outputs and errors of a set."""
        values = self._oracle.fresh_inputs(seed, "own")
        answers = self._oracle.exact(self._oracle.models.wide, copied(values))
        own, errors = self._oracle.errors(self._oracle.models, copied(values), answers)
        return values, answers, own, errors

    def _passes(
        self,
        values: list[Any],
        answers: list[torch.Tensor],
        own: list[torch.Tensor],
        errors: list[torch.Tensor],
        number: int,
        fault: str,
    ) -> bool:
        """Whether a product in lower precision is unseen in the outputs, and not excused."""
        change = Watched(fault)
        with Injection(number, change):
            outputs = self._oracle.run(self._oracle.models.plain, copied(values))
        if not change.changed:
            return False
        excused = True
        for place, (output, answer) in enumerate(zip(outputs, answers, strict=True)):
            found, right = error_of(output, answer), answer.reshape(-1)
            if not answer.is_floating_point():
                excused = False  # an integer that stays the same says nothing of how near it was to another
                if not bool(((found == 0) | (output.reshape(-1) == own[place].reshape(-1))).all()):
                    return False
                continue
            found = torch.where(right.isfinite(), found, 0.0)
            if not bool((found <= self._allowed(place, right, errors[place])).all()):
                return False
            excused = excused and _is_one_rounding(found, right, output.dtype)
        return not excused

    def _allowed(self, place: int, right: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        """Tolerances of an output's elements, flat."""
        profile = self._oracle.profiles[place]
        assert profile is not None
        allowed = torch.empty_like(right)
        profile.of_all(allowed, right, error, self._oracle.limits[place])
        return allowed


def _chosen(steps: list[Step]) -> list[int]:
    """Numbers of the products to try, evenly thinned."""
    products = [k for k, one in enumerate(steps) if one.kind == "product" and one.dtype in LOWER]
    most = max((steps[k].size for k in products), default=0)
    products = [k for k in products if steps[k].size >= MIN_SHARE * most]
    if len(products) <= MAX_PRODUCTS:
        return products
    return [products[round(k * (len(products) - 1) / (MAX_PRODUCTS - 1))] for k in range(MAX_PRODUCTS)]


def _is_one_rounding(error: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether errors are within one unit in the last place of the largest of each element's neighbours."""
    padding = (0, -right.numel() % _NEIGHBOURS)
    size = torch.nn.functional.pad(right.abs(), padding).view(-1, _NEIGHBOURS)
    largest = size.nan_to_num(0.0, posinf=0.0).amax(1, keepdim=True)
    found = torch.nn.functional.pad(error, padding).view(-1, _NEIGHBOURS)
    return bool((found <= torch.finfo(dtype).eps * largest).all())
