"""A reference in several precisions, with its inputs converted to match."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import keystr, tree_leaves_with_path, tree_map_only

from cudal1_worker.oracle.distributions import reals
from cudal1_worker.program import state

_WIDER: dict[Any, torch.dtype] = {torch.float32: torch.float64, torch.complex64: torch.complex128}


@dataclass(frozen=True)
class Models:
    """The reference and its twins in other precisions, with the same weights."""

    plain: Any
    """The reference in its own precision."""
    wide: Any
    """In float64."""
    narrow: Any
    """In float32; None if no output is float64."""


class Mode(TorchDispatchMode):
    """A dispatch mode whose first operator does not import torch.compile.

    torch excludes each mode's method from compilation, for which the first call imports the compiler: 5 s per oracle.
    Nothing is compiled while our modes are active.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._execute(func, args, kwargs or {})

    @abstractmethod
    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute one operator call."""


class Widened(Mode):
    """Mode in which requests for float32 get float64, so that `x.float()` does not round in a float64 twin.

    Likewise, complex64 becomes complex128.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked = False
        """Whether any operator requested it."""

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (wider := _WIDER.get(kwargs.get("dtype"))) is not None:
            self.asked = True
            kwargs = kwargs | {"dtype": wider}
        return func(*args, **kwargs)


def copied(values: list[Any]) -> list[Any]:
    """Return inputs with copies of their tensors."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def as_dtype(value: Any, dtype: torch.dtype) -> Any:
    """Convert floating-point tensors and modules to a dtype, also in lists, tuples and dicts.

    Complex tensors get the corresponding complex dtype. Other values are returned unchanged.
    """

    def converted(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            if one.is_complex():
                return one.to(dtype.to_complex())
            return one.to(dtype) if one.is_floating_point() else one
        one._apply(converted)  # `one.to(dtype)` leaves imaginary parts out
        for module in one.modules():
            for name, own in vars(module).items():
                if not name.startswith("_") and not isinstance(own, torch.nn.Module):  # those are torch's own
                    vars(module)[name] = as_dtype(own, dtype)
        return one

    return tree_map_only((torch.Tensor, torch.nn.Module), converted, value)


def unregistered(module: Any) -> dict[str, torch.Tensor]:
    """Return the tensors that a module keeps outside its state, by attribute name.

    This includes tensors in lists, tuples and dicts, and non-persistent buffers.
    """
    found: dict[str, torch.Tensor] = {}
    for path, part in module.named_modules() if isinstance(module, torch.nn.Module) else ():
        own = {name: value for name, value in vars(part).items() if not name.startswith("_")}  # the others are torch's
        passing = {name: part._buffers[name] for name in part._non_persistent_buffers_set}
        for name, value in (own | passing).items():
            begin = f"{path}.{name}" if path else name
            leaves = tree_leaves_with_path(value)
            found |= {f"{begin}{keystr(keys)}": one for keys, one in leaves if isinstance(one, torch.Tensor)}
    return found


def kept_state(module: Any) -> dict[str, torch.Tensor]:
    """Return all tensors that a module keeps between calls, by name, except the running statistics of batch norms.

    These are cheap, and programs may leave them out.
    """
    norms = torch.nn.modules.batchnorm._NormBase
    parts = module.named_modules() if isinstance(module, torch.nn.Module) else ()
    own = {
        f"{path}.{name}" if path else name for path, part in parts if isinstance(part, norms) for name in part._buffers
    }
    return {name: one for name, one in (state.tensors(module) | unregistered(module)).items() if name not in own}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal; NaN and zero count as equal, and infinities as the largest number."""
    return one.shape == other.shape and torch.equal(reals(one).nan_to_num(), reals(other).nan_to_num())


def aliases(output: torch.Tensor, values: list[Any]) -> bool:
    """Return whether an output shares storage with an input."""
    start = output.untyped_storage().data_ptr()
    return any(isinstance(v, torch.Tensor) and v.numel() and v.untyped_storage().data_ptr() == start for v in values)
