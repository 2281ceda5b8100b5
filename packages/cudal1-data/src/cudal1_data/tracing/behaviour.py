"""A reference's behaviour on small inputs that are the same for all programs: rewrites of one function agree.

Sizes are shrunk the same way in every program. Inputs are drawn twice: by the program, with a seed for each random
call, and from one distribution for all programs. Parameters get values by size and order, regardless of names and
layouts. All arithmetic is in float64. Outputs are summarized by their projections on fixed directions. This module
imports torch and executes the program: only `child.py` imports it, in a separate process.
"""

# This module calls torch's functions by name.
# pyright: basic

from __future__ import annotations

import ast
import math
import operator
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from cudal1_data.tracing.tracer import executed, made, without_values

_MIN_SIZE = 5
"""Smaller constants are kernel sizes, strides, numbers of groups: they stay."""
_SIZES = (8, 16, 32, 96, 256)
"""Candidates for small sizes. A program uses those that it runs with and that exceed twice its largest other number,
not counting multipliers and divisors."""
_MAX_ELEMENTS = (1 << 22, 1 << 16)
"""Maximum number of elements of all inputs, and of all parameters, at a program's first and second size; a rewrite with
another number in it may start at the second. The second limit also holds for shared inputs."""
_MAX_OUTPUT_ELEMENTS = 1 << 26
"""Maximum number of elements of all outputs: a product of two thin matrices is far larger than these."""
_FACTOR = 6.0
"""Factor between the first and second set of inputs; only the second reveals a clamp at 5."""
_DIRECTIONS = 8
_BLOCK_ELEMENTS = 1 << 16
"""Maximum length of the directions."""
_LONGEST_S = 20
"""Limit of processor time (independent of load) for one program; results beyond it are left out."""
_RANDOM = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "uniform", "exponential")
_CASTS = ("float", "half", "bfloat16", "double")
_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def behaviour(source: str, name: str) -> tuple[tuple[float, ...], ...]:
    """Return numbers that characterize a program's function, one tuple for each size and each kind of inputs.

    The result is empty if the program cannot run at small sizes, draws random numbers, or gives nearly constant
    outputs.

    Each tuple has, for each output on two sets of inputs: number of elements, root mean square, and the projections of
    the output divided by it.

    Args:
        source: Program text. It is executed: pass only trusted programs.
        name: Its name in tracebacks.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    signal.signal(signal.SIGPROF, _give_up)
    signal.setitimer(signal.ITIMER_PROF, _LONGEST_S)
    found: list[tuple[float, ...]] = []
    limits = list(_MAX_ELEMENTS)
    small, own = _shrunk(source)
    try:
        for tree in (*small, own):
            if not limits or (tree is own and len(limits) < len(_MAX_ELEMENTS)):
                break
            try:
                found.extend(_told(tree, name, limits[0]))
            except _TooLargeError:
                if len(limits) < len(_MAX_ELEMENTS):
                    break  # larger sizes are too large as well
                continue
            except (RuntimeError, ValueError, IndexError, AssertionError, TypeError, ZeroDivisionError):
                continue  # these sizes are incompatible; others may work
            del limits[0]
    except TimeoutError:
        pass  # keep the results so far
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        torch.set_default_dtype(before)
    return tuple(one for one in found if one)


def _give_up(*_: object) -> None:
    raise TimeoutError(f"took more than {_LONGEST_S} s")


class _Computed(ast.NodeTransformer):
    """Replaces arithmetic on integers by its result."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        compute = _ARITHMETIC.get(type(node.op))
        match node:
            case ast.BinOp(left=ast.Constant(value=int(left)), right=ast.Constant(value=int(right))) if compute:
                with suppress(ZeroDivisionError):
                    return ast.copy_location(ast.Constant(compute(left, right)), node)
        return node


def _parsed(source: str) -> ast.Module:
    """Parse a program; `A = 3 * 4` at the top level becomes `A = 12`."""
    tree = ast.parse(source)
    for one in tree.body:
        if isinstance(one, ast.Assign):
            one.value = _Computed().visit(one.value)
    return tree


def _shrunk(source: str) -> tuple[list[ast.Module], ast.Module]:
    """Return the program with each usable small size, and unchanged."""
    own = _parsed(source)
    sizes, largest = _numbers(own)
    small: list[ast.Module] = []
    for size in (one for one in _SIZES if sizes and one > 2 * largest):
        tree = _parsed(source)
        named = {id(constant): name for name, constant in sorted(_constants(tree), key=lambda one: one[0] in sizes)}
        for one in ast.walk(tree):
            if isinstance(one, ast.Constant) and type(one.value) is int and named.get(id(one), one.value) in sizes:
                one.value = size
        small.append(tree)
    return small, own


def _constants(tree: ast.Module) -> list[tuple[str, ast.Constant]]:
    """Return the integers assigned to names at the top level, as in `A = 3`, `A = B = 3` and `A, B = 3, 4`."""
    found: list[tuple[str, ast.Constant]] = []
    assigned = [(target, one.value) for one in tree.body if isinstance(one, ast.Assign) for target in one.targets]
    for target, value in assigned:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        for left, right in zip(names, values, strict=False):
            if isinstance(left, ast.Name) and isinstance(right, ast.Constant) and type(right.value) is int:
                found.append((left.id, right))
    return found


def _integers(tree: ast.AST) -> set[int]:
    return {one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and type(one.value) is int}


def _ratios(tree: ast.AST) -> set[int]:
    """Return the integers that occur only as multipliers or divisors."""
    operators = (one for one in ast.walk(tree) if isinstance(one, ast.BinOp))
    ratios = {
        id(side) for one in operators if isinstance(one.op, ast.Mult | ast.FloorDiv) for side in (one.left, one.right)
    }
    others = (one for one in ast.walk(tree) if isinstance(one, ast.Constant) and id(one) not in ratios)
    return _integers(tree) - {one.value for one in others if type(one.value) is int}


def _numbers(tree: ast.Module) -> tuple[set[str | int], int]:
    """Return the sizes of inputs, as names or literals, and the largest other number below 1,000."""
    inputs = next((one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "get_inputs"), None)
    used = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    shapes = {one.id for one in ast.walk(inputs) if isinstance(one, ast.Name)} if inputs else set()
    written = {value for value in _integers(inputs) if value >= _MIN_SIZE} if inputs else set()
    values = {name: one.value for name, one in _constants(tree) if isinstance(one.value, int)}
    sizes = {name for name, value in values.items() if name in shapes and value >= _MIN_SIZE}
    others = {value for name, value in values.items() if name in used - sizes}
    for one in tree.body:
        if isinstance(one, ast.ClassDef):
            others |= _integers(one) - _ratios(one)
    return sizes | written, max((one for one in others - written if one < 1000), default=0)


def _told(tree: ast.Module, name: str, max_elements: int) -> Iterator[tuple[float, ...]]:
    """Yield a program's summary on its own inputs and on shared inputs; nothing if it draws random numbers."""
    _refuse_large(tree, name, max_elements)
    module = executed(tree, name)
    with _Reseeded(), _Wide():
        inputs = list(module.get_inputs())
    model = made(module)
    if isinstance(model, torch.nn.Module):
        model = model.double()
        _fill(model)
    first, second = (_answers(model, inputs, seed) for seed in (1, 2))
    if all(torch.equal(one, other) for one, other in zip(first, second, strict=True)):
        yield _answers_told(model, inputs, first)
        if _elements(inputs) <= _MAX_ELEMENTS[1]:
            shared = _redrawn(inputs)
            yield _answers_told(model, shared, _answers(model, shared, 1))


def _answers_told(model: Any, inputs: list[Any], answers: list[torch.Tensor]) -> tuple[float, ...]:
    numbers = [_projected(one) for one in answers]
    if not all(numbers):
        return ()
    larger = pytree.tree_map_only(torch.Tensor, _larger, inputs)
    numbers += [_projected(one) for one in _answers(model, larger, 1)]
    return tuple(one for some in numbers for one in some)


def _redrawn(inputs: list[Any]) -> list[Any]:
    """Redraw inputs whose elements all differ from one distribution; others are masks, steps or symmetric."""
    calls = count(1)

    def drawn(value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point() or value.unique().numel() < value.numel():
            return value
        return torch.randn(value.shape, generator=torch.Generator().manual_seed(next(calls)))

    return pytree.tree_map_only(torch.Tensor, drawn, inputs)


class _TooLargeError(Exception):
    """Tensors exceed the maximum number of elements."""


def _refuse_large(tree: ast.Module, name: str, max_elements: int) -> None:
    """Check a program's sizes on tensors without values, since KernelBench's take gigabytes.

    Raises:
        _TooLargeError: Its inputs, parameters or outputs are too large.
    """
    mode, model, inputs = without_values(tree, name)
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    if _elements(inputs) > max_elements or _elements(parameters) > max_elements:
        raise _TooLargeError
    outputs = None
    with mode, torch.no_grad(), suppress(Exception):  # sizes that depend on values are unknown
        outputs = model(*inputs)
    if _elements(outputs) > _MAX_OUTPUT_ELEMENTS:
        raise _TooLargeError


def _elements(values: Any) -> int:
    return sum(one.numel() for one in pytree.tree_leaves(values) if isinstance(one, torch.Tensor))


def _larger(value: torch.Tensor) -> torch.Tensor:
    return value * _FACTOR if value.is_floating_point() and bool((value < 0).any()) else value


def _answers(model: Any, values: list[Any], seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    copies = pytree.tree_map_only(torch.Tensor, _copied, values)
    with torch.no_grad(), _Wide():
        leaves = pytree.tree_leaves(model(*copies))
    return [one.detach().double().flatten() for one in leaves if isinstance(one, torch.Tensor)]


def _copied(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.dtype in (torch.float16, torch.bfloat16, torch.float32) else value.clone()


def _projected(answer: torch.Tensor) -> list[float]:
    """Return the summary of an output; empty if it is not finite or has too few different values."""
    if not answer.numel() or not bool(answer.isfinite().all()) or not _varies(answer):
        return []
    size = float(answer.square().mean().sqrt())
    if size == 0.0:
        return []
    block = _block(answer / size)
    shares = _directions(block.numel()) @ block / math.sqrt(answer.numel())
    return [float(answer.numel()), *(float(f"{one:.8g}") for one in (size, *shares.tolist()))]


def _varies(answer: torch.Tensor) -> bool:
    """Return whether an output has three different values, or all different for fewer than three elements."""
    low, high = answer.aminmax()
    if answer.numel() < 3:
        return answer.numel() == 1 or bool(low != high)
    return bool(((answer != low) & (answer != high)).any())


def _block(answer: torch.Tensor) -> torch.Tensor:
    """Return a weighted sum of a large output's blocks, because longer directions would take gigabytes."""
    blocks = -(-answer.numel() // _BLOCK_ELEMENTS)
    if blocks <= 1:
        return answer
    weights = torch.randn(blocks, generator=torch.Generator().manual_seed(0))
    return weights @ torch.nn.functional.pad(answer, (0, blocks * _BLOCK_ELEMENTS - answer.numel())).view(blocks, -1)


@lru_cache(maxsize=1)
def _directions(elements: int) -> torch.Tensor:
    """Return fixed directions for outputs of a length, cached: successive outputs mostly have the same length."""
    return torch.randn(_DIRECTIONS, elements, generator=torch.Generator().manual_seed(0))


def _fill(model: torch.nn.Module) -> None:
    """Set parameters to values that depend on their sizes and order.

    All values lie between 0.25 and 0.75. A matrix consists of square symmetric blocks, as wide as its smaller side; all
    matrices with that side draw blocks from one sequence. Vectors draw elements likewise. So a weight has the same
    values if it is stored transposed, with further dimensions, or joined with those that follow. Buffers are kept,
    except constant ones (statistics that are still zeros or ones).
    """
    drawn: dict[int, torch.Generator] = {}

    def draw(side: int, *shape: int) -> torch.Tensor:
        generator = drawn.setdefault(side, torch.Generator().manual_seed(side))
        return 0.25 + 0.5 * torch.rand(*shape, generator=generator)

    named = [(one, True) for one in model.parameters()] + [(one, False) for one in model.buffers()]
    with torch.no_grad():
        for one, trained in named:
            constant = one.numel() > 1 and bool((one == one.flatten()[0]).all())
            if not one.is_floating_point() or not one.numel() or not (trained or constant):
                continue
            rows = next((size for size in one.shape if size > 1), 1)
            side, length = sorted((rows, one.numel() // rows))
            if side == 1:
                values = draw(min(length, 2), length)  # a single number draws from its own sequence
            else:
                blocks = draw(side + 1, -(-length // side), side, side)
                values = ((blocks + blocks.transpose(1, 2)) / 2).flatten(0, 1)[:length]
                values = values if rows == length else values.t()
            one.copy_(values.reshape(one.shape))


class _Reseeded(TorchFunctionMode):
    """A mode that seeds each random call by its number: shapes of earlier calls have no effect."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").rstrip("_").removesuffix("_like")
        if name in _RANDOM:
            self.calls += 1
            torch.manual_seed(self.calls)
        return func(*args, **(kwargs or {}))


class _Wide(TorchFunctionMode):
    """A mode that keeps all arithmetic in float64: casts between floating-point types have no effect."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _CASTS and len(args) == 1:
            return torch.Tensor.double(args[0])
        kwargs = {key: _widened(value) for key, value in (kwargs or {}).items()}
        return func(*(_widened(one) for one in args), **kwargs)


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value
