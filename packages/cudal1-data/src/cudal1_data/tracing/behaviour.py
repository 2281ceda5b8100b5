"""What a reference does to small inputs that are the same for every program: the rewrites of one function agree.

Sizes become small ones, in the same way for every program; inputs are drawn with a seed for each random call, and once
more from one distribution for all programs; parameters get values by size and order, for any names and layouts;
all arithmetic is in float64. A program's answers are told by their projections on fixed directions. This module imports
torch and executes the program that it is given: `child.py` alone imports it, in a process of its own.
"""

# torch's functions are called by name here.
# pyright: basic

from __future__ import annotations

import ast
import math
import random
import signal
import types
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_MIN_SIZE = 5
"""Constants below are kernel sizes, strides, numbers of groups: they stay."""
_SIZES = (8, 16, 32, 96, 256)
"""What sizes may become: those that are more than twice any other number of the program, and that it runs with. Numbers
that something is multiplied or divided by do not count."""
_MAX_ELEMENTS = (1 << 22, 1 << 16)
"""Elements of all inputs and of all parameters, at most, at the first size of a program's comparison, and at the
second, with which a rewrite begins that has another number in it. Shared inputs have no more than that either."""
_FACTOR = 6.0
"""What the inputs of the second set are multiplied by: a clamp at 5 is seen by that alone."""
_DIRECTIONS = 8
_BLOCK_ELEMENTS = 1 << 16
"""Length of the directions, at most."""
_LONGEST_S = 20
"""Processor time for one program, so that a busy machine tells no less; what takes longer is left unknown."""
_RANDOM = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "uniform", "exponential")
_CASTS = ("float", "half", "bfloat16", "double")


def behaviour(source: str, name: str) -> tuple[tuple[float, ...], ...]:
    """Return numbers that tell what a program computes, once for each size and each kind of inputs.

    None where it cannot be run small, draws numbers, or gives an answer that tells little.

    Of each output, on each of two sets of inputs: number of elements, root mean square, and projections of the answer
    over that.

    Args:
        source: Program text. It is executed: give only programs that you would run.
        name: What to call it in tracebacks.
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
                continue  # these sizes do not go together; others may
            del limits[0]
    except TimeoutError:
        pass  # what was sent stands
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        torch.set_default_dtype(before)
    return tuple(one for one in found if one)


def _give_up(*_: object) -> None:
    raise TimeoutError(f"took more than {_LONGEST_S} s")


def _shrunk(source: str) -> tuple[list[ast.Module], ast.Module]:
    """Return the program with its sizes made small, and as it is."""
    own = ast.parse(source)
    sizes, largest = _numbers(own)
    small: list[ast.Module] = []
    for size in (one for one in _SIZES if sizes and one > 2 * largest):
        tree = ast.parse(source)
        named = {id(constant): name for name, constant in _constants(tree)}
        for one in ast.walk(tree):
            if isinstance(one, ast.Constant) and type(one.value) is int and named.get(id(one), one.value) in sizes:
                one.value = size
        small.append(tree)
    return small, own


def _constants(tree: ast.Module) -> list[tuple[str, ast.Constant]]:
    """Return the integers that stand at the top of a file by a name, in `A = 3` and `A, B = 3, 4`."""
    found: list[tuple[str, ast.Constant]] = []
    for one in tree.body:
        if not isinstance(one, ast.Assign) or len(one.targets) != 1:
            continue
        target, value = one.targets[0], one.value
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        for left, right in zip(names, values, strict=False):
            if isinstance(left, ast.Name) and isinstance(right, ast.Constant) and type(right.value) is int:
                found.append((left.id, right))
    return found


def _integers(tree: ast.AST) -> set[int]:
    return {one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and type(one.value) is int}


def _ratios(tree: ast.AST) -> set[int]:
    """Return the integers that something is multiplied or divided by, and that stand nowhere else."""
    operators = (one for one in ast.walk(tree) if isinstance(one, ast.BinOp))
    ratios = {
        id(side) for one in operators if isinstance(one.op, ast.Mult | ast.FloorDiv) for side in (one.left, one.right)
    }
    others = (one for one in ast.walk(tree) if isinstance(one, ast.Constant) and id(one) not in ratios)
    return _integers(tree) - {one.value for one in others if type(one.value) is int}


def _numbers(tree: ast.Module) -> tuple[set[str | int], int]:
    """Return the sizes of inputs, by name or as they are written out, and the largest other number below 1,000."""
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
    """Yield what a program does to its own inputs, and to inputs that all programs share; nothing where it draws."""
    module = types.ModuleType("reference")
    random.seed(0)
    torch.manual_seed(0)
    exec(compile(tree, name, "exec"), module.__dict__)
    with _Reseeded(), _Wide():
        inputs = list(module.get_inputs())
    _refuse_large((one for one in pytree.tree_leaves(inputs) if isinstance(one, torch.Tensor)), max_elements)
    arguments = module.get_init_inputs()
    model = module.Model(**arguments) if isinstance(arguments, dict) else module.Model(*arguments)
    if isinstance(model, torch.nn.Module):
        model = model.double()
        _refuse_large(model.parameters(), max_elements)
        _fill(model)
    first, second = (_answers(model, inputs, seed) for seed in (1, 2))
    if all(torch.equal(one, other) for one, other in zip(first, second, strict=True)):
        yield _answers_told(model, inputs, first)
        if sum(one.numel() for one in pytree.tree_leaves(inputs) if isinstance(one, torch.Tensor)) <= _MAX_ELEMENTS[1]:
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
    """Draw inputs anew from one distribution where all of their elements differ: others are masks, steps, symmetric."""
    calls = count(1)

    def drawn(value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point() or value.unique().numel() < value.numel():
            return value
        return torch.randn(value.shape, generator=torch.Generator().manual_seed(next(calls)))

    return pytree.tree_map_only(torch.Tensor, drawn, inputs)


class _TooLargeError(Exception):
    """There are too many elements to compute with."""


def _refuse_large(tensors: Iterable[torch.Tensor], max_elements: int) -> None:
    if sum(one.numel() for one in tensors) > max_elements:
        raise _TooLargeError


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
    """Tell an answer; nothing where it is not finite or has hardly any values."""
    if not answer.numel() or not bool(answer.isfinite().all()) or not _varies(answer):
        return []
    size = float(answer.square().mean().sqrt())
    if size == 0.0:
        return []
    block = _block(answer / size)
    shares = _directions(block.numel()) @ block / math.sqrt(answer.numel())
    return [float(answer.numel()), *(float(f"{one:.8g}") for one in (size, *shares.tolist()))]


def _varies(answer: torch.Tensor) -> bool:
    """Whether there are three different values, or as many as there are elements."""
    low, high = answer.aminmax()
    if answer.numel() < 3:
        return answer.numel() == 1 or bool(low != high)
    return bool(((answer != low) & (answer != high)).any())


def _block(answer: torch.Tensor) -> torch.Tensor:
    """Return the sum of a large answer's blocks, each with a fixed weight: longer directions would take gigabytes."""
    blocks = -(-answer.numel() // _BLOCK_ELEMENTS)
    if blocks <= 1:
        return answer
    weights = torch.randn(blocks, generator=torch.Generator().manual_seed(0))
    return weights @ torch.nn.functional.pad(answer, (0, blocks * _BLOCK_ELEMENTS - answer.numel())).view(blocks, -1)


@lru_cache(maxsize=1)
def _directions(elements: int) -> torch.Tensor:
    """Fixed directions for answers of so many elements; the next answer mostly has as many."""
    return torch.randn(_DIRECTIONS, elements, generator=torch.Generator().manual_seed(0))


def _fill(model: torch.nn.Module) -> None:
    """Give parameters values that depend on their sizes and on their order.

    All lie between 0.25 and 0.75. A matrix consists of square symmetric blocks, as wide as its smaller side, which all
    matrices with that side draw one after another; so do vectors with their elements. So a weight has the same values
    when it is kept transposed, with further dimensions, or in one with those that follow. Buffers stay, but for
    statistics that are still zeros or ones.
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
                values = draw(min(length, 2), length)  # a single number is none of a vector's
            else:
                blocks = draw(side + 1, -(-length // side), side, side)
                values = ((blocks + blocks.transpose(1, 2)) / 2).flatten(0, 1)[:length]
                values = values if rows == length else values.t()
            one.copy_(values.reshape(one.shape))


class _Reseeded(TorchFunctionMode):
    """Gives each random call a seed of its own, by its number: other shapes before it change nothing."""

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
    """Keeps all arithmetic in float64: casts between floating-point types change nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _CASTS and len(args) == 1:
            return torch.Tensor.double(args[0])
        kwargs = {key: _widened(value) for key, value in (kwargs or {}).items()}
        return func(*(_widened(one) for one in args), **kwargs)


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value
