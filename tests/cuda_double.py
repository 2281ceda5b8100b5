"""A double of a GPU: runs programs with kernels in CUDA C++ on the CPU (see cuda_double.h).

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
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils import cpp_extension

HEADER = Path(__file__).with_name("cuda_double.h")
FLAGS = ("-O1", "-w", "-std=gnu++17", "-fpermissive", "-shared", "-fPIC")
_LAUNCH = re.compile(r"([\w:]+(?:<[\w, ]*>)?)\s*<<<(.*?)>>>\s*\((.*?)\)\s*;", re.DOTALL)
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
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
    _numbers: Iterator[int] = field(default_factory=count)

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
            held = [_as_kernel_argument(one) for one in args]
            sizes = (ctypes.c_int * 7)(*grid, *block, shared_mem)
            self._run(library, library.enter, held, sizes)

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
                self._run(library, getattr(library, f"enter_{function}"), [_as_host_argument(one) for one in args])

            return call

        return SimpleNamespace(**{one: bound(one) for one in functions})

    def _run(self, library: ctypes.CDLL, entry: Callable[..., None], held: list[ctypes.Array], *more: object) -> None:
        self.launches += 1
        library.set_mode(int(self.dry), int(self.backwards))
        entry(len(held), (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held)), *more)
        library.get_failure.restype = ctypes.c_char_p
        failure = library.get_failure().decode()
        if failure:
            raise DoubleError(failure)

    def _build(self, text: str, entry: str) -> ctypes.CDLL:
        path = self.folder / f"kernel_{next(self._numbers)}.cpp"
        text = _DYNAMIC.sub(r"\1* \2 = (\1*)dynamic_shared;", text)
        together = "#define TOGETHER\n" if _WAITS.search(text) else ""
        path.write_text(f'{together}#include "{HEADER}"\n#line 1 "kernel.cu"\n{text}\n{entry}')
        library = path.with_suffix(".so")
        done = subprocess.run(
            ["g++", *self.flags, str(path), "-o", str(library)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DoubleError(f"{done.stderr[-3000:]}\n{text}")
        return ctypes.CDLL(str(library))


def _as_kernel_argument(value: object) -> ctypes.Array:
    """Return the bytes that `torch.cuda._compile_kernel`'s launcher passes, and rubbish behind them."""
    if isinstance(value, torch.Tensor):
        given = bytes(ctypes.c_void_p(value.data_ptr()))
    elif isinstance(value, int):
        given = bytes(ctypes.c_int(value))
    elif isinstance(value, float):
        given = bytes(ctypes.c_double(value))
    else:
        raise DoubleError(f"expected tensors, integers and floats as arguments of a kernel, got {value!r}")
    return ctypes.create_string_buffer(given + b"\xa5" * 8, 16)


def _as_host_argument(value: object) -> ctypes.Array:
    if isinstance(value, torch.Tensor):
        sizes = [*value.shape, *[0] * (8 - value.dim())]
        given = bytes((ctypes.c_longlong * 10)(value.data_ptr(), *sizes, value.dim()))
    elif isinstance(value, int):
        given = bytes(ctypes.c_longlong(value))
    elif isinstance(value, float):
        given = bytes(ctypes.c_double(value))
    else:
        raise DoubleError(f"expected tensors, integers and floats as arguments of an extension, got {value!r}")
    return ctypes.create_string_buffer(given, len(given))


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
