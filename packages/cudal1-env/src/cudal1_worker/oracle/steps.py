"""Steps of a reference: the operator calls at which a program could save work, and their results with a fault.

A fault changes one call only. `Call.faults` names the faults of a call; `Call.with_fault` executes it with one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from cudal1_worker.program.module import Attempt

LOWER: dict[torch.dtype, tuple[str, ...]] = {
    torch.float64: ("float32",),
    torch.float32: ("tf32", "bfloat16", "float16"),
    torch.float16: ("float8",),
    torch.bfloat16: ("float8",),
    torch.complex64: ("tf32", "bfloat16", "float16"),
    torch.complex128: ("float32",),
}
"""Precisions below a product's own, to which its factors are rounded; sums stay in its own."""
OTHERS: dict[torch.dtype, tuple[str, ...]] = {
    torch.float64: ("float32",),
    torch.float32: ("bfloat16", "float16"),
    torch.complex64: ("bfloat16", "float16"),
}
"""Precisions to which operands and results of other steps are rounded, because storing these in them would save time.
Hardware has TF32 and float8 only for factors."""

HALF = (torch.float16, torch.bfloat16)
BLOCKS = {"partial sums of 32 rounded": 32, "partial sums of 128 rounded": 128}
"""Number of terms after which a half-precision step rounds its sum to its own dtype."""
SEQUENTIAL = "sequential sums"
"""Adds one term after another in the step's own precision. It is no fault: a tolerance must allow it, and so it allows
all orders of summation that err less."""
_MAX_BLOCKS = 1024
"""Maximum blocks of `SEQUENTIAL`; up to this many terms, each is a block."""


@dataclass(frozen=True)
class Product:
    """Positions of a product's operands among its arguments."""

    factors: tuple[int, ...]
    """Positions of the factors."""
    along: tuple[int, int] | None = None
    """Summed dimensions of the first two factors; None if a part of the terms cannot be taken."""
    addend: int | None = None
    """Position of the addend."""


PRODUCTS: dict[str, Product] = {
    "mm": Product((0, 1), (-1, -2)),
    "bmm": Product((0, 1), (-1, -2)),
    "matmul": Product((0, 1), (-1, -2)),
    "mv": Product((0, 1), (-1, -1)),
    "dot": Product((0, 1), (-1, -1)),
    "vdot": Product((0, 1), (-1, -1)),
    "linear": Product((0, 1), (-1, -1), 2),
    "addmm": Product((1, 2), (-1, -2), 0),
    "baddbmm": Product((1, 2), (-1, -2), 0),
    "addmv": Product((1, 2), (-1, -1), 0),
    "addbmm": Product((1, 2), (-1, -2), 0),
    "convolution": Product((0, 1), (1, 1), 2),
    "_trilinear": Product((0, 1, 2)),
    "_cdist_forward": Product((0, 1)),
}
_ATTENTION = "_scaled_dot_product"
"""Prefix of the names of fused attention; its first arguments are query, key and value."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_REDUCTIONS = _names(
    "sum nansum mean prod amax amin max min argmax argmin median logsumexp var std var_mean std_mean "
    "linalg_vector_norm norm"
)
_LOSSES = _names("mse_loss smooth_l1_loss huber_loss binary_cross_entropy nll_loss_forward")
BATCH_NORMS = _names("native_batch_norm _native_batch_norm_legit _batch_norm_with_update cudnn_batch_norm")
NORMS = _names("native_layer_norm native_group_norm _fused_rms_norm") | BATCH_NORMS
_SCANS = _names("cumsum cumprod logcumsumexp")
RUNNING = {"cumsum": torch.add, "cumprod": torch.mul}
"""Scans that can be computed by doubling, with the function that combines two terms."""
SOFTMAX = _names("_softmax _log_softmax")
_ARITHMETIC = _names(
    "add sub rsub mul div true_divide floor_divide remainder fmod neg positive abs square addcmul addcdiv lerp ldexp "
    "deg2rad rad2deg floor ceil round trunc frac frexp nextafter gcd lcm sgn sign signbit copysign heaviside "
    "where masked_fill maximum minimum fmax fmin max min clamp clamp_max clamp_min clip nan_to_num "
    "relu relu6 hardtanh hardsigmoid leaky_relu rrelu threshold threshold_backward hardshrink softshrink prelu "
    "_prelu_kernel "
    "eq equal ne lt le gt ge isfinite isinf isnan isneginf isposinf logical_and logical_not logical_or logical_xor "
    "bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor "
    "__ilshift__ __ixor__ __lshift__ __rshift__ __xor__ clone conj_physical _conj_physical"
)
"""Pointwise operators that are too cheap to save time at, or choose between values. All others are functions."""

CHOICES = _names(
    "where masked_fill maximum minimum fmax fmin max min clamp clamp_max clamp_min clip nan_to_num relu relu6 hardtanh "
    "leaky_relu threshold prelu _prelu_kernel"
)
"""Operators that may return one of their operands as it is."""
_COPIES = _names("_to_copy copy cat stack index index_select gather roll flip repeat constant_pad_nd")
MULTIPLIES = _names("mul div true_divide addcmul addcdiv")

_POINTWISE = torch.Tag.pointwise

Place = tuple[str, int]
"""Name of a call, and its number among the calls of that name."""


def is_view(func: Any) -> bool:
    """Return whether an operator returns no tensor, or a view of its operand."""
    returns = func._schema.returns
    return not returns or (returns[0].alias_info is not None and not returns[0].alias_info.is_write)


@cache
def name_of(func: Any) -> str:
    """Return an operator's name, without the underscore of in-place operators."""
    text = func._schema.name.partition("::")[2]
    return text[:-1] if text.endswith("_") and not text.endswith("__") else text


def has_tensor(values: Iterable[Any]) -> bool:
    """Return whether a tensor is among an operator's arguments, or in one of its lists."""
    return any(isinstance(one, torch.Tensor) or (isinstance(one, list | tuple) and has_tensor(one)) for one in values)


@dataclass
class Call:
    """One call of an operator, as a dispatch mode sees it."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int = -1
    """Its number among the calls that compute; set by `calls.Calls`."""
    place: Place = ("", -1)
    """Its name, and its number among those of that name; set by `calls.Calls`."""

    @property
    def name(self) -> str:
        """The operator's name, without the underscore of in-place operators."""
        return name_of(self.func)

    @property
    def title(self) -> str:
        """Number and name, for messages."""
        return f"step {self.number + 1} ({self.name})"

    @cached_property
    def operands(self) -> list[torch.Tensor]:
        """The call's floating-point and complex tensors."""
        return [one for one in (*self.args, *self.kwargs.values()) if _floating(one)]

    @cached_property
    def kind(self) -> str | None:
        """`product`, `reduction` or `elementwise`; None if the call is no step."""
        if not self.operands:
            return None
        if (_POINTWISE in self.func.tags and self.name not in _ARITHMETIC) or self.name == "log_sigmoid_forward":
            return "elementwise"
        if not self.args or self.args[0] is not self.operands[0]:
            return None
        if self.name in PRODUCTS or self.name.startswith(_ATTENTION):
            return "product"
        known = self.name in _REDUCTIONS | _LOSSES | NORMS | _SCANS | SOFTMAX
        return "reduction" if known and self.terms > 1 else None

    @property
    def is_product(self) -> bool:
        """Whether it is a product whose factors can be rounded."""
        return self.kind == "product" and self.dtype in LOWER

    @property
    def passes_on(self) -> bool:
        """Whether it copies elements, chooses between them, or does arithmetic on them."""
        return self.name in _ARITHMETIC or self.name in _COPIES

    @property
    def is_opaque(self) -> bool:
        """Whether it computes, in a way that this file does not know: fused layers, transforms, pools."""
        func = self.func
        return bool(self.operands) and self.kind is None and not func._schema.is_mutable and _POINTWISE not in func.tags

    @property
    def has_operands(self) -> bool:
        """Whether parts of its operands can be left out, because it joins them: a product, or an opaque call."""
        return self.kind == "product" or self.is_opaque

    @property
    def size(self) -> int:
        """Number of elements of the largest operand."""
        return max(one.numel() for one in self.operands)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the first operand."""
        return self.operands[0].dtype

    @cached_property
    def bound(self) -> dict[str, Any]:
        """Arguments by name."""
        found: dict[str, Any] = {}
        for place, argument in enumerate(self.func._schema.arguments):
            given = self.args[place] if place < len(self.args) else self.kwargs.get(argument.name)
            found[argument.name] = argument.default_value if given is None else given
        return found

    @cached_property
    def product(self) -> Product:
        """Positions of a product's operands."""
        return PRODUCTS.get(self.name) or Product((0, 1, 2))

    @property
    def factor(self) -> int:
        """Position of a product's last factor: weights, or values of attention."""
        return self.product.factors[-1]

    @cached_property
    def reduced(self) -> list[int]:
        """Dimensions of a reduction's first operand that it reduces."""
        x, dims = self.args[0], self.bound.get("dim")
        if dims is None or (isinstance(dims, list | tuple) and not dims):
            dims = list(range(x.ndim))
        return [dims] if isinstance(dims, int) else list(dims)

    @property
    def dim(self) -> int:
        """The longest of these, along which a part is taken."""
        x = self.args[0]
        return max(self.reduced, key=lambda k: x.shape[k]) if self.reduced and x.ndim else 0

    @cached_property
    def terms(self) -> int:
        """Number of reduced terms; 0 if a part of them cannot be taken.

        For norms it counts all normalized elements, otherwise the terms along one dimension.
        """
        if self.name in PRODUCTS or self.name.startswith(_ATTENTION):
            return self._product_terms()
        x = self.args[0]
        reduces = "other" not in self.bound  # `max` of two tensors is elementwise
        reduces = reduces and not (self.name in _LOSSES and self.bound.get("reduction") == 0)
        if self.name == "native_group_norm":
            return x.numel() // max(1, self.bound["N"] * self.bound["group"])
        if self.name in BATCH_NORMS:
            return x.numel() // x.shape[1] if self.bound.get("training", True) else 0
        if self.name in NORMS:
            return math.prod(self.bound["normalized_shape"])
        return int(x.shape[self.dim]) if reduces and x.ndim else 0

    def _product_terms(self) -> int:
        grouped = self.name == "convolution" and self.bound["groups"] != 1
        if self.product.along is None or grouped:
            return 0
        return int(self.args[self.product.factors[0]].shape[self.product.along[0]])

    def faults(self) -> list[str]:
        """Return the faults that can be injected into the call."""
        found = list((LOWER if self.kind == "product" else OTHERS).get(self.dtype, ()))
        if self.dtype in HALF and self._is_sum():
            found += [name for name, block in BLOCKS.items() if self.terms > self._block(block)]
        return found

    def with_fault(self, fault: str, factor: int | None = None) -> Any:
        """Execute the call with a fault, or in another order of summation.

        Args:
            fault: One of `faults`, or `SEQUENTIAL`.
            factor: Position of the one factor of a product to round; all by default.
        """
        if fault in BLOCKS:
            return self._in_blocks(self._block(BLOCKS[fault]), _rounding(self.dtype))
        if fault == SEQUENTIAL:
            return self._in_blocks(max(1, -(-self.terms // _MAX_BLOCKS)), lambda total: total)
        return self._rounded(lambda x: rounded(x, fault), factor)

    def in_precision(self, fault: str, own: torch.dtype) -> Any:
        """Execute the float64 twin's call with a fault of the precision `own`.

        Args:
            fault: One of `faults` of the same call in the reference, or `own` to execute the call in that precision.
            own: The reference's precision in this call.
        """
        if fault == "own":
            return self._all_in(own)
        if fault in BLOCKS:
            return self._in_blocks(self._block(BLOCKS[fault]), _rounding(own))
        return self.with_fault(fault)

    def by_doubling(self) -> Any:
        """Compute a running sum or product in its result's precision, by doubling: over 1, 2, 4, ... neighbours."""
        result = self.args[0].to(self.bound.get("dtype") or self.dtype)
        for step in (1 << k for k in range((self.terms - 1).bit_length())):
            left = self.terms - step
            late = RUNNING[self.name](result.narrow(self.dim, step, left), result.narrow(self.dim, 0, left))
            result = torch.cat([result.narrow(self.dim, 0, step), late], self.dim)
        return result

    # --- precision ---

    def only_moves(self, results: list[torch.Tensor]) -> bool:
        """Return whether it computes no new numbers: rounded operands give what rounding its `results` gives."""

        def to(x: torch.Tensor) -> torch.Tensor:
            return rounded(x, "bfloat16")

        with Attempt():  # rounded operands may be invalid
            moved = tree_leaves(self.func(*_all_rounded(self.args, to), **_all_rounded(self.kwargs, to)))
            found = (one for one in moved if isinstance(one, torch.Tensor))
            return all(map(torch.equal, found, _all_rounded(results, to)))
        return False

    def _rounded(self, to: Callable[[torch.Tensor], torch.Tensor], factor: int | None = None) -> Any:
        if self.kind is None:
            return _all_rounded(self.func(*_all_rounded(self.args, to), **_all_rounded(self.kwargs, to)), to)
        places = range(len(self.args))
        if self.kind == "product":
            places = self.product.factors if factor is None else (factor,)
        elif self.kind == "reduction":
            places = [k for k in places if _floating(self.args[k]) and 100 * self.args[k].numel() >= self.size]
        in_place = self.func._schema.is_mutable and self.kind == "elementwise"
        args = list(self.args)
        for place in places:
            if _floating(args[place]):
                args[place] = args[place].copy_(to(args[place])) if in_place and place == 0 else to(args[place])
        result = self.func(*args, **self.kwargs)
        if self.kind == "product":
            return result
        if self.func._schema.is_mutable:
            return result.copy_(to(result)) if _floating(result) else result
        return tree_map(lambda one: to(one) if _floating(one) else one, result)

    def _all_in(self, own: torch.dtype) -> Any:
        if self.func._schema.is_mutable:  # the call must write to the given tensor
            return self._rounded(lambda x: x.to(own).to(x.dtype))

        def to(value: Any, dtype: torch.dtype) -> Any:
            dtype = dtype.to_complex() if isinstance(value, torch.Tensor) and value.is_complex() else dtype.to_real()
            return value.to(dtype) if _floating(value) else value

        args, kwargs = tree_map(lambda value: to(value, own), (self.args, self.kwargs))
        return tree_map(lambda value: to(value, self.dtype), self.func(*args, **kwargs))

    # --- parts of the terms ---

    def _block(self, terms: int) -> int:
        """Return the length along the summed dimension with so many terms: a convolution's channel has several."""
        if self.name != "convolution":
            return terms
        return max(1, terms // math.prod(self.args[1].shape[2:]))

    def _factors_of(self, start: int, count: int, *, addend: bool) -> list[Any]:
        """Return the arguments for a part of the terms; only one part may include the addend."""
        assert self.product.along is not None
        args = list(self.args)
        for place, dim in zip(self.product.factors, self.along, strict=True):
            args[place] = args[place].narrow(dim, start, count)
        at = self.product.addend
        if not addend and at is not None and at < len(args) and isinstance(args[at], torch.Tensor):
            args[at] = torch.zeros_like(args[at])
        return args

    @property
    def along(self) -> tuple[int, int]:
        """Summed dimensions of a product's first two factors."""
        assert self.product.along is not None
        one, other = self.product.along
        second = self.args[self.product.factors[1]]
        if self.name == "convolution" and self.bound["transposed"]:
            return one, 0
        return one, other if second.ndim > 1 else -1

    def _in_blocks(self, block: int, rounding: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """Sum block by block, rounding after each; a call that is no such sum is executed unchanged."""
        if not self._is_sum() or self.terms <= block:
            return self.func(*self.args, **self.kwargs)
        total = None
        for start in range(0, self.terms, block):
            count = min(block, self.terms - start)
            if self.kind == "product":
                part = self.func(*self._factors_of(start, count, addend=start == 0), **self.kwargs)
            else:
                x = self.args[0].narrow(self.dim, start, count)
                part = self.func(x, *self.args[1:], **self.kwargs) * (count / self.terms if self.name == "mean" else 1)
            total = rounding(part if total is None else total + part)
        return total

    def _is_sum(self) -> bool:
        attention = self.name.startswith(_ATTENTION)
        return not self.func._schema.is_mutable and (
            (self.kind == "product" and not attention) or self.name in ("sum", "mean")
        )


def rounded(x: torch.Tensor, to: str) -> torch.Tensor:
    """Round a floating-point tensor to a narrower precision, keeping its dtype.

    Args:
        x: The tensor.
        to: `tf32` (10 explicit significand bits, ties away from zero, as the hardware rounds factors); `float8`
            (e4m3, scaled so that the largest magnitude is 448); or the name of a torch dtype.
    """
    if x.is_complex():
        return torch.view_as_complex(rounded(torch.view_as_real(x.resolve_conj()), to))
    if to == "tf32":
        bits = x.float().contiguous().view(torch.int32)
        return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(x.dtype)
    if to != "float8":
        return x.to(getattr(torch, to)).to(x.dtype)
    largest = x.abs().max().double().clamp(min=torch.finfo(torch.float32).tiny) if x.numel() else x.new_ones(())
    scale = 448.0 / largest
    return ((x.double() * scale).float().to(torch.float8_e4m3fn).double() / scale).to(x.dtype)


def _rounding(to: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.to(to).to(x.dtype)


def _all_rounded(value: Any, to: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return tree_map(lambda one: to(one) if _floating(one) else one, value)


def _floating(value: Any) -> bool:
    """Return whether a value is a floating-point or complex tensor, and not sparse."""
    is_dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return is_dense and (value.is_floating_point() or value.is_complex())
