"""A double of a GPU: runs programs with kernels in CUDA C++ on the CPU (see cuda.h).

It stands for `torch.cuda._compile_kernel` and for `load_inline`. What it does not show: speed, what a compiler for GPUs
makes of the text, and races that neither order of a block's threads brings out.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils import cpp_extension

HEADER = Path(__file__).with_name("cuda.h")
FLAGS = ("-O1", "-w", "-std=gnu++17", "-fpermissive", "-shared", "-fPIC")
_LAUNCH = re.compile(r"([\w:]+(?:<[\w, ]*>)?)\s*<<<(.*?)>>>\s*\((.*?)\)\s*;", re.DOTALL)
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
_CONVERSIONS = {
    "cvt.f32.f16": "{ _Float16 v; __builtin_memcpy(&v, &h, 2); f = (float)v; }",
    "cvt.rn.f16.f32": "{ _Float16 v = (_Float16)f; __builtin_memcpy(&h, &v, 2); }",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": "multiply_fragments(sums, left, right, false);",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": "multiply_fragments(sums, left, right, true);",
    "cvt.rn.bf16.f32": "{ unsigned v; __builtin_memcpy(&v, &f, 4); h = (v + 0x7fff + ((v >> 16) & 1)) >> 16; }",
}
"""By name of an instruction what stands for it: `h` holds the half, `f` the float; `left`, `right` fragments."""
_FENCE = 1 << 15
"""Bytes before and behind a tensor, together twice as many."""
_WAITS = re.compile(r"__sync|_sync\(")


class DoubleError(AssertionError):
    """A program does what a GPU would refuse."""


@dataclass
class Gpu:
    """Builds texts and runs kernels."""

    folder: Path
    """Where builds go."""
    dry: bool = False
    """Whether launches are checked only; tensors may then be `meta`."""
    backwards: bool = False
    """Whether threads of a block run from the last to the first."""
    flags: Sequence[str] = FLAGS
    """The compiler's."""
    texts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Every text that was built, with the kernel's name; an extension's without its host part."""
    launches: int = 0
    """How many calls of a kernel or of an extension's function there were."""
    _built: dict[str, ctypes.CDLL] = field(default_factory=dict[str, ctypes.CDLL])

    def compile_kernel(self, source: str, name: str) -> Callable[..., None]:
        """Stand for `torch.cuda._compile_kernel`."""
        self.texts.append((source, name))
        entry = f'extern "C" void enter(int n, void** v, const int* s) {{ run_kernel({name}, n, v, s); }}\n'
        library = self._build(source, entry)

        def call(
            grid: tuple[int, int, int] = (1, 1, 1),
            block: tuple[int, int, int] = (1, 1, 1),
            args: Sequence[object] = (),
            shared_mem: int = 0,
        ) -> None:
            self._run(library, "enter", args, _kernel_bytes, (ctypes.c_int * 7)(*grid, *block, shared_mem))

        return call

    def load_inline(
        self, name: str, cpp_sources: str, cuda_sources: str, functions: Sequence[str], **options: object
    ) -> SimpleNamespace:
        """Stand for `torch.utils.cpp_extension.load_inline`."""
        for function in functions:
            if f"{function}(" not in cpp_sources:
                raise DoubleError(f"{name}: expected a declaration of {function} in cpp_sources, got {cpp_sources!r}")
        first = _LAUNCH.search(cuda_sources)
        if first is None:
            raise DoubleError(f"{name}: expected a launch <<<...>>> in cuda_sources, found none")
        text = re.sub(r"#include <(torch|ATen|c10)[^>]*>", "", cuda_sources)
        self.texts.append((_without_host(text, functions), ""))
        text = _LAUNCH.sub(lambda found: f"launch({found[2]}, [&] {{ {found[1]}({found[3]}); }});", text)
        entries = "".join(
            f'extern "C" void enter_{one}(int n, void** v) {{ run_host({one}, n, v); }}\n' for one in functions
        )
        library = self._build(text, f"{cpp_sources}\n{entries}")

        def bound(function: str) -> Callable[..., None]:
            def call(*args: object) -> None:
                self._run(library, f"enter_{function}", args, _host_bytes)

            return call

        return SimpleNamespace(**{one: bound(one) for one in functions})

    def _run(
        self,
        library: ctypes.CDLL,
        entry: str,
        args: Sequence[object],
        as_bytes: Callable[[object, int], bytes],
        *more: object,
    ) -> None:
        self.launches += 1
        fenced: dict[int, _Fenced] = {}
        if not self.dry:
            fenced = {one.data_ptr(): _Fenced(one) for one in args if isinstance(one, torch.Tensor)}
        held: list[ctypes.Array[ctypes.c_char]] = []
        for one in args:
            place = fenced[one.data_ptr()].pointer if isinstance(one, torch.Tensor) and fenced else 0
            given = as_bytes(one, place)
            held.append(ctypes.create_string_buffer(given, len(given)))
        library.set_mode(int(self.dry), int(self.backwards))
        getattr(library, entry)(len(held), (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held)), *more)
        library.get_failure.restype = ctypes.c_char_p
        failure = library.get_failure().decode()
        if failure:
            raise DoubleError(failure)
        for place, one in enumerate(fenced.values()):
            if not one.close():
                raise DoubleError(f"{entry}: expected writes within its tensors, found one outside of tensor {place}")

    def _build(self, text: str, entry: str) -> ctypes.CDLL:
        key = text + entry
        if key in self._built:
            return self._built[key]
        path = self.folder / f"kernel_{len(self._built)}.cpp"
        for name, plain in _CONVERSIONS.items():
            text = re.sub(rf'asm(?: volatile)?\("{re.escape(name)} [^;]*;" [^;]*;', plain, text)
        kernels = _DYNAMIC.sub(r"\1* \2 = (\1*)dynamic_shared;", text)
        together = "#define TOGETHER\n" if _WAITS.search(text) else ""
        path.write_text(f'{together}#include "{HEADER}"\n#line 1 "kernel.cu"\n{kernels}\n{entry}')
        library = path.with_suffix(".so")
        done = subprocess.run(
            ["g++", *self.flags, str(path), "-o", str(library)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DoubleError(f"{done.stderr[-3000:]}\n{text}")
        self._built[key] = ctypes.CDLL(str(library))
        return self._built[key]


class _Fenced:
    """A tensor's elements between two fences of NaN, which the program should neither read nor write."""

    def __init__(self, tensor: torch.Tensor) -> None:
        span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        self.flat = tensor.detach().as_strided((span,), (1,)).view(torch.uint8)
        self.memory = torch.full((2 * _FENCE + len(self.flat),), 0xFF, dtype=torch.uint8)
        self.start = _FENCE // 2 - (self.memory.data_ptr() + _FENCE // 2 - tensor.data_ptr()) % 64
        self.inside.copy_(self.flat)

    @property
    def inside(self) -> torch.Tensor:
        return self.memory[self.start : self.start + len(self.flat)]

    @property
    def pointer(self) -> int:
        """Where the elements lie; as far from a multiple of 64 bytes as the tensor's own."""
        return self.inside.data_ptr()

    def close(self) -> bool:
        """Hand the elements back; tell whether the fences are whole."""
        self.flat.copy_(self.inside)
        self.inside.fill_(0xFF)
        return bool((self.memory == 0xFF).all())


def _kernel_bytes(value: object, pointer: int) -> bytes:
    """Return what `torch.cuda._compile_kernel`'s launcher passes, and rubbish behind it."""
    if isinstance(value, torch.Tensor):
        given = bytes(ctypes.c_void_p(pointer))
    elif isinstance(value, int):
        given = bytes(ctypes.c_int(value))
    elif isinstance(value, float):
        given = bytes(ctypes.c_double(value))
    else:
        raise DoubleError(f"expected tensors, integers and floats as arguments of a kernel, got {value!r}")
    return given + b"\xa5" * 8


def _host_bytes(value: object, pointer: int) -> bytes:
    if isinstance(value, torch.Tensor):
        sizes = [*value.shape, *[0] * (8 - value.dim())]
        return bytes((ctypes.c_longlong * 10)(pointer, *sizes, value.dim()))
    if isinstance(value, int):
        return bytes(ctypes.c_longlong(value))
    if isinstance(value, float):
        return bytes(ctypes.c_double(value))
    raise DoubleError(f"expected tensors, integers and floats as arguments of an extension, got {value!r}")


def _without_host(text: str, functions: Sequence[str]) -> str:
    """Return an extension's kernels alone: its functions are those at the left margin that end with `}` there."""
    for function in functions:
        text = re.sub(rf"^void {function}\(.*?^}}$", "", text, flags=re.DOTALL | re.MULTILINE)
    return text


@contextmanager
def doubled(gpu: Gpu) -> Iterator[None]:
    """Put the double in the place of both loaders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "_compile_kernel", gpu.compile_kernel)
        patch.setattr(cpp_extension, "load_inline", gpu.load_inline)
        yield
