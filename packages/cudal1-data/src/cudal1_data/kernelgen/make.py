"""All variants of a task: every template with every choice of its parameters, without duplicates."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial

from cudal1_data.hashes import digest
from cudal1_data.kernelgen.codegen import rewrites
from cudal1_data.kernelgen.codegen.attention import attention_choices, attention_program
from cudal1_data.kernelgen.codegen.cuda.products import (
    CudaTiles,
    inline_product_program,
    nvrtc_product_program,
    product_choices,
)
from cudal1_data.kernelgen.codegen.matmuls import has_product
from cudal1_data.kernelgen.codegen.products import Factors, Tiles, product_program
from cudal1_data.kernelgen.codegen.programs import (
    Choice,
    inline_program,
    nvrtc_program,
    torch_program,
    triton_program,
    vector_of,
)
from cudal1_data.kernelgen.codegen.triton import MAX_TILE
from cudal1_data.kernelgen.codegen.windows import has_window, window_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import Kernel, LoopStep, Step, plan, units
from cudal1_data.kernelgen.ir import Reference
from cudal1_data.task import Task
from cudal1_data.techniques import Backend, classify

BACKENDS: tuple[Backend, ...] = ("pytorch", "triton", "cuda-load-inline", "cuda-nvrtc", "torch-compile")
"""Backends of templates; C for the CPU has none."""
_UNSUITABLE = (UnsuitableError, RecursionError)
"""Exceptions of a template for an unsupported reference; a long chain of operators exceeds the recursion limit."""
Parameters = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True)
class Made:
    """A program made by a template."""

    source: str
    """Its text."""
    backend: Backend
    """Its backend."""
    template: str
    """Name of the template."""
    parameters: Parameters
    """Parameters of the template."""


_TRITON = (
    [Choice(block=block, warps=warps, rows=rows, stages=2, depth=depth)
     for (block, rows), warps, depth in itertools.product(
         ((256, 1), (512, 2), (1024, 4), (2048, 8), (4096, 1)), (1, 2, 4, 8), (0, 1))]
    + [Choice(block=block, warps=warps, rows=rows, looped=1)
       for (block, rows), warps in itertools.product(((1024, 1), (2048, 1), (4096, 1), (1024, 4)), (4, 8))]
    + [Choice(block=1024, warps=16, rows=1), Choice(block=1024, warps=4, stages=4), Choice(block=8192, warps=8)]
    + [Choice(block=block, warps=warps, rows=rows, looped=looped)
       for (block, rows), warps, looped in itertools.product(((64, 32), (32, 64), (128, 32)), (4, 8), (1, 0))]
)  # fmt: skip
_CUDA = [
    Choice(threads=threads, per_block=per_block, vector=vector, unroll=unroll, depth=depth)
    for (threads, per_block), (vector, unroll), depth in itertools.product(
        ((32, 1), (32, 4), (32, 8), (64, 1), (128, 1), (256, 1), (512, 1), (1024, 1)),
        ((1, 1), (2, 2), (4, 4), (8, 4)),
        (0, 1),
    )
]
_INLINE = [
    Choice(threads=256, vector=1),
    Choice(threads=256, vector=4, unroll=4),
    Choice(threads=32, per_block=8, unroll=2, vector=2),
    Choice(threads=1024, vector=4, unroll=4),
]
"""Few choices, because a build takes most of a minute."""

_SIZES: dict[Factors, Sequence[tuple[int, int, int, int]]] = {
    "ieee": ((32, 32, 32, 2), (64, 64, 16, 4), (64, 64, 32, 4), (128, 64, 32, 8), (128, 128, 16, 8)),
    "tf32x3": ((64, 64, 32, 4), (128, 64, 32, 4), (128, 128, 32, 8)),
}
_TILES = [
    Tiles(block_m=m, block_n=n, block_k=k, warps=warps, stages=stages, group=group, precision=precision)
    for precision, sizes in _SIZES.items()
    for (m, n, k, warps), stages, group in itertools.product(sizes, (2, 3), (1, 8))
]

_WARPS_OF_COLUMNS = 4
"""Minimum number of warps for transposed references: their rows are long, and Triton compiles slowly if a thread has a
thousand elements."""

Program = Callable[[Reference, Sequence[Step], Choice], str]
_KERNELS: tuple[tuple[Backend, Program, list[Choice]], ...] = (
    ("triton", triton_program, _TRITON),
    ("cuda-nvrtc", nvrtc_program, _CUDA),
    ("cuda-load-inline", inline_program, _INLINE),
)
_PRODUCTS: tuple[tuple[Backend, Callable[[Reference, Sequence[Step], CudaTiles], str], int], ...] = (
    ("cuda-nvrtc", nvrtc_product_program, 5),
    ("cuda-load-inline", inline_product_program, 2),
)

_MAX_OF_TILE = 64
"""Triton: maximum elements of a tile for each thread. With 128 programs over elements took 2.8 times as long as their
task's fastest, with 512 programs over rows 2.0 times (medians, docs/results/verify_protocol2*)."""
_MAX_OF_ROW = 32
"""CUDA: maximum elements of a row for each thread, where a row can have more threads. Beyond it programs took 2.2 to
2.9 times as long as their task's fastest, below it 1.0 to 2.1 times."""
_MIN_OF_BLOCK = 128
"""CUDA: minimum elements of a block without rows. With 32 and 64 programs took twice as long as their task's
fastest."""


@dataclass(frozen=True)
class Option:
    """A template with a choice of its parameters, not rendered yet."""

    backend: Backend
    """Backend of its program."""
    template: str
    """Name of the template."""
    parameters: Parameters
    """Parameters of the template."""
    write: Callable[[], str]
    """Renders the program; raises an error for an unsupported reference."""
    form: tuple[object, ...] = ()
    """Equal for programs of the template that differ in numbers only; empty if unknown."""

    def render(self) -> Made | None:
        """Return the program; None if the template does not support the reference with these parameters."""
        with contextlib.suppress(*_UNSUITABLE):
            return Made(self.write(), self.backend, self.template, self.parameters)
        return None


def variants(task: Task, backends: Sequence[Backend] = BACKENDS) -> list[Made]:
    """Return every variant of a task that templates can make, without duplicates.

    Args:
        task: The task at the variants' size.
        backends: Backends of the programs.
    """
    seen: set[str] = {digest(task.source)}
    found = (option.render() for option in options(task, backends))
    return [made for made in found if made and not (digest(made.source) in seen or seen.add(digest(made.source)))]


def options(task: Task, backends: Sequence[Backend] = BACKENDS) -> list[Option]:
    """Return every template with every choice of its parameters that may suit a task, not rendered.

    Args:
        task: The task at the variants' size.
        backends: Backends of the programs.
    """
    return list(_options(task, backends))


def _options(task: Task, backends: Sequence[Backend]) -> Iterator[Option]:
    for one in task.variants:
        tags = classify(one.source)
        if tags is not None and tags.backend in backends and "cuda" in one.devices:
            yield Option(tags.backend, f"starter:{one.name}", (), partial(str, one.source))
    source = task.source
    if "pytorch" in backends:
        yield Option("pytorch", "plain", (), partial(rewrites.plain_program, source))
        if "Conv2d" in source:
            yield Option("pytorch", "channels-last", (), partial(rewrites.channels_last_program, source))
        yield Option("pytorch", "captured", (), partial(rewrites.captured_program, source))
        yield Option("pytorch", "transposed", (), partial(rewrites.transposed_program, source))
    if "torch-compile" in backends:
        for mode in rewrites.COMPILE_MODES:
            yield Option(
                "torch-compile", "compile", (("mode", mode),), partial(rewrites.compiled_program, source, mode)
            )
    yield from _kernels(source, backends)
    with contextlib.suppress(*_UNSUITABLE):
        for option in _kernels(rewrites.transposed(source), backends):
            if int(dict(option.parameters).get("warps", _WARPS_OF_COLUMNS)) >= _WARPS_OF_COLUMNS:
                yield replace(option, parameters=(*option.parameters, ("transposed", 1)))


def why_unread(source: str) -> str | None:
    """Return why the templates with kernels cannot read a reference; None if they can.

    Args:
        source: The reference.
    """
    try:
        plan(read(source).roots)
    except UnsuitableError as error:
        return str(error)
    except RecursionError:
        return "its chain of operators is too long"
    return None


def _kernels(source: str, backends: Sequence[Backend]) -> Iterator[Option]:
    """Yield the templates with kernels for a reference, if it can be read."""
    try:
        reference = read(source)
        steps = plan(reference.roots)
    except _UNSUITABLE:
        return
    kernels = units(steps)
    if "pytorch" in backends and kernels:
        yield Option("pytorch", "operators", (), partial(torch_program, reference, steps))
    if "triton" in backends:
        if has_product(reference, steps):
            for tiles in _TILES:
                write = partial(product_program, reference, steps, tiles)
                yield Option("triton", "triton-product", tuple(asdict(tiles).items()), write)
        if has_window(reference, steps):
            for tiles in (one for one in _TILES if one.group == 1):
                write = partial(window_program, reference, steps, tiles)
                yield Option("triton", "triton-window", tuple(asdict(tiles).items()), write)
        for rows in attention_choices(reference, steps):
            write = partial(attention_program, reference, steps, rows)
            yield Option("triton", "triton-attention", tuple(asdict(rows).items()), write)
    for backend, product, most in _PRODUCTS:
        for tile in product_choices(reference, steps)[:most] if backend in backends else ():
            write = partial(product, reference, steps, tile)
            yield Option(backend, f"{backend}-product", tuple(asdict(tile).items()), write)
    template = "rows" if any(not isinstance(one, LoopStep) and one.trailing for one in kernels) else "elements"
    if any(isinstance(one, LoopStep) for one in kernels):
        template = "loop"
    for backend, program, choices in _KERNELS:
        if backend not in backends or not kernels:
            continue
        read_as, mine = (reference, steps), kernels
        if backend == "triton" and template != "loop" and ".contiguous()" in source:
            read_as = _in_place(source) or read_as
            mine = units(read_as[1])
        columns = any(isinstance(one, Kernel) and one.columns for one in mine)
        fitting = [choice for choice in choices if columns or not choice.for_columns]
        quick = [choice for choice in fitting if not any(_is_slow(choice, backend, one) for one in mine)]
        for choice in quick or fitting:
            if choice.depth and choice.depth >= len(mine):
                continue  # the same as depth 0: all kernels
            write = partial(program, *read_as, choice)
            form = _form(choice, backend, mine) if template == "elements" else ()
            yield Option(backend, f"{backend}-{template}", _parameters(choice, backend), write, form)


def _in_place(source: str) -> tuple[Reference, Sequence[Step]] | None:
    """Return the reference with inputs read as they lie in memory; None if it cannot be read so."""
    with contextlib.suppress(UnsuitableError):
        placed = read(source, in_place=True)
        return placed, plan(placed.roots)
    return None


def _is_slow(choice: Choice, backend: Backend, kernel: Kernel | LoopStep) -> bool:
    """Return whether a kernel would be slow with these parameters on any GPU: by registers, or by idle threads."""
    if isinstance(kernel, LoopStep):
        return False
    if backend == "triton":
        tile = choice.elements
        if kernel.trailing:
            if kernel.columns and not choice.for_columns:
                return True
            whole = choice.rows << max(int(kernel.cols) - 1, 1).bit_length()
            tile = min(whole, choice.rows * choice.block) if choice.looped or whole > MAX_TILE else whole
        return tile > _MAX_OF_TILE * 32 * choice.warps
    if kernel.trailing:
        return choice.threads < 512 and kernel.cols > _MAX_OF_ROW * choice.threads
    return choice.threads * choice.per_block * vector_of(choice, int(kernel.size)) < _MIN_OF_BLOCK


def _form(choice: Choice, backend: Backend, kernels: Sequence[Kernel | LoopStep]) -> tuple[object, ...]:
    """Return the features besides numbers that determine the text of a program without rows."""
    if backend == "triton":
        return ("triton", choice.depth)
    # One element at once, 2 or 4 in a CUDA vector type, or more in a custom type.
    widths = (vector_of(choice, int(one.size)) for one in kernels if not isinstance(one, LoopStep))
    return (backend, choice.depth, *((width > 1) + (width > 4) for width in widths))


@cache
def _parameters(choice: Choice, backend: Backend) -> Parameters:
    triton = ("block", "warps", "stages", "rows", "looped", "depth")
    cuda = ("threads", "vector", "per_block", "unroll", "depth")
    names = triton if backend == "triton" else cuda
    values = asdict(choice)
    return tuple((field.name, values[field.name]) for field in fields(Choice) if field.name in names)
