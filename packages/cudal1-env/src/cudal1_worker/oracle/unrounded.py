"""Half-precision results before their last rounding.

The last rounding errs by at most half a unit in the last place, and every program makes it. What comes before it
differs from program to program: one that fuses steps rounds less often than the reference, at other places. So the
reference's errors before its last rounding tell how much such a program may err. If one result decides many, its one
rounding may be close by chance: with random roundings the reference errs differently in each run (Parker 1997, Monte
Carlo arithmetic).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from cudal1_worker.oracle.models import Mode
from cudal1_worker.oracle.reference_error import error_of
from cudal1_worker.oracle.steps import HALF, is_view
from cudal1_worker.program.module import lacks_memory

_EXPONENT = 0x7F800000
"""The exponent's bits of a float32 number."""


class Unrounded(Mode):
    """Computes each half-precision result in float32, too, from the rounded operands.

    Args:
        draws: For rounding each result up or down at random (`rounded_at_random`); None rounds to nearest.
    """

    def __init__(self, draws: torch.Generator | None = None) -> None:
        super().__init__()
        self._draws = draws
        self._wide: Any = WeakIdKeyDictionary()
        """Float32 values of half-precision tensors."""

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor's value before its last rounding; itself if it is not known."""
        return self._wide.get(tensor, tensor)

    def error(self, output: torch.Tensor, answer: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        """Return an output's error before its last rounding, flat.

        It is at least what the output's own error exceeds half a unit in the last place by, because a product may
        round its partial sums. It is at most the output's own error: if the reference casts its result, so does the
        float64 twin, and the answer itself is rounded.

        Args:
            output: The output.
            answer: Its float64 answer.
            error: Its error, float64, flat.
        """
        if output.dtype not in HALF or output not in self._wide:
            return error
        excess = error - answer.reshape(-1).abs() * (torch.finfo(output.dtype).eps / 2)
        return torch.fmin(torch.fmax(error_of(self._wide[output], answer), excess), error)

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func._schema.is_mutable:  # values of other tensors may have changed, too
            self._wide.clear()
        elif torch.Tag.nondeterministic_seeded not in func.tags and any(map(_is_half, tree_flatten(result)[0])):
            self._compute(func, args, kwargs, result)
        return result

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        def wide(known: Callable[[torch.Tensor], torch.Tensor]) -> Any:
            def widened(value: Any) -> Any:
                if isinstance(value, torch.dtype):
                    return torch.float32 if value in HALF else value
                return known(value) if _is_half(value) else value

            return func(*tree_map(widened, args), **tree_map(widened, kwargs))

        def before_rounding(value: torch.Tensor) -> torch.Tensor:
            return self.value(value).float()

        exact = is_view(func)
        try:
            found = wide(before_rounding if exact else torch.Tensor.float)
            if not exact and _are_equal(result, found):  # nothing is rounded here: a maximum, a choice
                exact, found = True, wide(before_rounding)
        except Exception as error:
            if lacks_memory(error):
                raise
            return  # it does not exist in float32
        for one, other in zip(tree_flatten(result)[0], tree_flatten(found)[0], strict=True):
            if _is_half(one) and isinstance(other, torch.Tensor) and other.dtype is torch.float32:
                if self._draws is not None and not exact:
                    one.copy_(rounded_at_random(other, one.dtype, self._draws))
                self._wide[one] = other


def rounded_at_random(values: torch.Tensor, dtype: torch.dtype, draws: torch.Generator) -> torch.Tensor:
    """Return float32 values in half precision, each rounded up or down with chances that give its mean.

    Uniform noise of half a unit in the last place is added, then values are rounded to nearest. Numbers of this
    precision stay as they are.
    """
    limits, nearest = torch.finfo(dtype), values.to(dtype)
    noise = torch.rand(values.shape, generator=draws, device=values.device).sub_(0.5)
    powers = (values.view(torch.int32) & _EXPONENT).view(torch.float32)  # of two, at most the magnitudes
    moved = torch.addcmul(values, noise, powers.clamp_(min=limits.smallest_normal), value=limits.eps).to(dtype)
    return torch.where(nearest == values, nearest, moved)


def _are_equal(result: Any, wide: Any) -> bool:
    """Return whether the floating-point tensors of a result are equal to those in float32."""
    pairs = zip(tree_flatten(result)[0], tree_flatten(wide)[0], strict=True)
    return all(torch.equal(one.float(), other) for one, other in pairs if _is_half(one))


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in HALF
