"""A reference in several precisions, with its inputs converted to match."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cudal1_worker.oracle.distributions import reals
from cudal1_worker.program import state

_WIDER: dict[Any, torch.dtype] = {torch.float32: torch.float64, torch.complex64: torch.complex128}


@dataclass(frozen=True)
class Models:
    """A reference in several precisions, with the same weights."""

    plain: Any
    """The reference in its own precision."""
    wide: Any
    """In float64."""
    narrow: Any
    """In float32; None where no output is in float64."""


class Mode(TorchDispatchMode):
    """A dispatch mode whose first operator does not import torch.compile.

    torch hides the method of each mode from its compiler, and the first call imports the compiler for that: 5 s in each
    oracle. Nothing is compiled while a mode of ours is on.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Widened(Mode):
    """Within, what asks for float32 by name gets float64: a float64 twin with `x.float()` in it would not be one.

    So it is with complex numbers of two of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked = False
        """Whether something did."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Carry out one operator call."""
        kwargs = kwargs or {}
        if (wider := _WIDER.get(kwargs.get("dtype"))) is not None:
            self.asked = True
            kwargs = kwargs | {"dtype": wider}
        return func(*args, **kwargs)


def names_float32(text: str) -> bool:
    """Whether a program names float32, so that it may cast to it.

    >>> names_float32("y = x.float()"), names_float32("y = float(2)"), names_float32("x.to(torch.float32)")
    (True, False, True)
    """
    return re.search(r"float32|\.float\b|FloatTensor|complex64|\bcfloat\b", text) is not None


def copied(values: list[Any]) -> list[Any]:
    """Inputs with tensors of their own."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def as_dtype(value: Any, dtype: torch.dtype) -> Any:
    """A floating-point tensor or a module in a dtype, also in plain lists, tuples and dicts; anything else as it is.

    Complex tensors consist of two of that dtype.
    """
    if isinstance(value, torch.Tensor):
        if value.is_complex():
            return value.to(dtype.to_complex())
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, torch.nn.Module):
        value._apply(lambda one: as_dtype(one, dtype))  # `value.to(dtype)` leaves imaginary parts out
        for module in value.modules():
            for name, one in vars(module).items():
                if not name.startswith("_") and not isinstance(one, torch.nn.Module):  # those are torch's own
                    vars(module)[name] = as_dtype(one, dtype)
        return value
    if type(value) in (list, tuple):
        return type(value)(as_dtype(one, dtype) for one in value)
    if type(value) is dict:
        return {key: as_dtype(one, dtype) for key, one in value.items()}
    return value


def unregistered(module: Any) -> dict[str, torch.Tensor]:
    """Return the tensors that a module keeps outside its state, by the name of their attribute.

    Also those in plain lists, tuples and dicts, and buffers that are not persistent.
    """
    found: dict[str, torch.Tensor] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif type(value) in (list, tuple):
            for place, one in enumerate(value):
                add(f"{name}[{place}]", one)
        elif type(value) is dict:
            for key, one in value.items():
                add(f"{name}[{key!r}]", one)

    for path, part in module.named_modules() if isinstance(module, torch.nn.Module) else ():
        own = {name: value for name, value in vars(part).items() if not name.startswith("_")}  # the others are torch's
        passing = {name: part._buffers[name] for name in part._non_persistent_buffers_set}
        for name, value in (own | passing).items():
            add(f"{path}.{name}" if path else name, value)
    return found


def kept_state(module: Any) -> dict[str, torch.Tensor]:
    """Return all that a module keeps from call to call, by name, but for the running statistics of batch norms.

    Those are cheap, and programs rightly leave them out.
    """
    norms = torch.nn.modules.batchnorm._NormBase
    parts = module.named_modules() if isinstance(module, torch.nn.Module) else ()
    own = {
        f"{path}.{name}" if path else name for path, part in parts if isinstance(part, norms) for name in part._buffers
    }
    return {name: one for name, one in (state.tensors(module) | unregistered(module)).items() if name not in own}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same, NaN included."""
    return one.shape == other.shape and torch.equal(reals(one).nan_to_num(), reals(other).nan_to_num())


def aliases(output: torch.Tensor, values: list[Any]) -> bool:
    """Whether an output lies in the memory of an input."""
    start = output.untyped_storage().data_ptr()
    return any(isinstance(v, torch.Tensor) and v.numel() and v.untyped_storage().data_ptr() == start for v in values)
