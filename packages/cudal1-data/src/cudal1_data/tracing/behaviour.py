"""What a reference does to small inputs that are the same for every program: the rewrites of one function agree.

Sizes become small ones, in the same way for every program; inputs are drawn anew with a seed for each random call;
parameters get values by size and order, whatever their names and layouts; all arithmetic is in float64. A program's
answers are told by their projections on fixed directions. This module imports torch and executes the program that it
is given: `child.py` alone imports it, in a process of its own.
"""

# torch's functions are called by name here.
# pyright: basic

from __future__ import annotations

import ast
import math
import random
import signal
import types
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_MIN_SIZE = 5
"""Constants below are kernel sizes, strides, numbers of groups: they stay."""
_SIZES = (8, 16, 32, 48, 64, 96)
"""What sizes may become: the first that is more than twice any other number of the program, and that it runs with."""
_TRIES = 3
_MAX_ELEMENTS = 1 << 22
"""Elements of all inputs and of all parameters, at most: a program at its own sizes may be too large."""
_SCALES = (1.0, 6.0)
"""What inputs are multiplied by: a clamp at 5 is seen by the second set alone."""
_DIRECTIONS = 8
_BLOCK_ELEMENTS = 1 << 20
"""Length of the directions, at most."""
_LONGEST_S = 20
"""Time for one program; what it takes longer for is left unknown."""
_RANDOM = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "uniform", "exponential")
_CASTS = ("float", "half", "bfloat16", "double")


def behaviour(source: str, name: str) -> tuple[float, ...]:
    """Return numbers that tell what a program computes.

    None where it cannot be run small, draws numbers, or gives an answer that tells little.

    Of each output, on each of two sets of inputs: number of elements, root mean square, and projections of the answer
    over that.

    Args:
        source: Program text. It is executed: give only programs that you would run.
        name: What to call it in tracebacks.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(_LONGEST_S)
    try:
        for tree in _shrunk(source):
            try:
                return _told(tree, name)
            except (RuntimeError, ValueError, IndexError, AssertionError, TypeError, ZeroDivisionError):
                continue  # these sizes do not go together; others may
    except TimeoutError:
        return ()
    finally:
        signal.alarm(0)
        torch.set_default_dtype(before)
    return ()


def _give_up(*_: object) -> None:
    raise TimeoutError(f"took more than {_LONGEST_S} s")


def _shrunk(source: str) -> Iterator[ast.Module]:
    """Yield the program with its sizes made small, then as it is."""
    sizes, others = _numbers(ast.parse(source))
    largest = max((one for one in others if one < 1000), default=0)
    tried = [size for size in _SIZES if size > 2 * largest][:_TRIES] if sizes else []
    for size in tried:
        tree = ast.parse(source)
        for constant in _constants(tree):
            if constant[0] in sizes:
                constant[1].value = size
        yield tree
    yield ast.parse(source)


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


def _numbers(tree: ast.Module) -> tuple[set[str], set[int]]:
    """Return the constants that are sizes of inputs, and all other whole numbers that a program computes with."""
    inputs = next((one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "get_inputs"), None)
    used = {one.id for one in ast.walk(inputs) if isinstance(one, ast.Name)} if inputs else set()
    values = {name: one.value for name, one in _constants(tree) if isinstance(one.value, int)}
    sizes = {name for name, value in values.items() if name in used and value >= _MIN_SIZE}
    others = {value for name, value in values.items() if name not in sizes}
    for one in tree.body:
        if isinstance(one, ast.ClassDef):
            literals = [each.value for each in ast.walk(one) if isinstance(each, ast.Constant)]
            others |= {abs(value) for value in literals if type(value) is int}
    return sizes, others


def _told(tree: ast.Module, name: str) -> tuple[float, ...]:
    module = types.ModuleType("reference")
    random.seed(0)
    torch.manual_seed(0)
    exec(compile(tree, name, "exec"), module.__dict__)
    with _Reseeded(), _Wide():
        inputs = list(module.get_inputs())
    _refuse_large(one for one in pytree.tree_leaves(inputs) if isinstance(one, torch.Tensor))
    arguments = module.get_init_inputs()
    model = module.Model(**arguments) if isinstance(arguments, dict) else module.Model(*arguments)
    if isinstance(model, torch.nn.Module):
        model = model.double()
        _refuse_large(model.parameters())
        _fill(model)
    found: list[float] = []
    for scale in _SCALES:
        values = pytree.tree_map_only(torch.Tensor, lambda one, by=scale: _scaled(one, by), inputs)
        first, second = (_answers(model, values, seed) for seed in (1, 2))
        if any(not torch.equal(one, other) for one, other in zip(first, second, strict=True)):
            return ()  # it draws numbers
        for answer in first:
            numbers = _projected(answer)
            if not numbers and scale == _SCALES[0]:
                return ()
            found.extend(numbers)
    return tuple(found)


def _refuse_large(tensors: Any) -> None:
    if sum(one.numel() for one in tensors) > _MAX_ELEMENTS:
        raise ValueError("too large to be run")


def _scaled(value: torch.Tensor, by: float) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    wide = value.double()
    return wide * by if bool((wide < 0).any()) else wide


def _answers(model: Any, values: list[Any], seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    copies = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, values)
    with torch.no_grad(), _Wide():
        leaves = pytree.tree_leaves(model(*copies))
    return [one.detach().double().flatten() for one in leaves if isinstance(one, torch.Tensor)]


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
    """Give parameters values that depend on their number of elements, and on their order among those with as many.

    All lie between 0.25 and 0.75, and square matrices are symmetric, so that one that is kept transposed, or with
    further dimensions of one, has the same. Buffers stay, but for statistics that are still zeros or ones.
    """
    seen: Counter[int] = Counter()
    named = [(one, True) for one in model.parameters()] + [(one, False) for one in model.buffers()]
    with torch.no_grad():
        for one, trained in named:
            constant = one.numel() > 1 and bool((one == one.flatten()[0]).all())
            if not one.is_floating_point() or not (trained or constant):
                continue
            seen[one.numel()] += 1
            generator = torch.Generator().manual_seed(1000 * seen[one.numel()] + one.numel() % 997)
            values = 0.25 + 0.5 * torch.rand(one.numel(), generator=generator)
            core = [size for size in one.shape if size > 1]
            if len(core) == 2 and core[0] == core[1]:
                matrix = values.view(core)
                values = ((matrix + matrix.t()) / 2).flatten()
            one.copy_(values.view(one.shape))


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
