"""Labelled failures: mutants of a correct program, each with one fault."""

from __future__ import annotations

from collections.abc import Callable

from cudal1_data.corpus.model import Label
from cudal1_data.mutants import mutated


def _with(*lines: str) -> Callable[[str], str]:
    """Return a mutation that runs lines after the correct `result`."""
    body = "\n".join(f"    {line}" for line in ("result = _right(self, *inputs)", *lines))
    return lambda source: mutated(source, f"def _forward(self, *inputs):\n{body}")


def _each(change: str) -> Callable[[str], str]:
    """Return a mutation that changes every output, named `one`."""
    return _with(f"return _each(lambda one: {change}, result)")


_LARGER = "one * 1.01 if one.is_floating_point() else (one * 1.01 + 1).to(one.dtype)"
"""An expression 1 % larger than `one`; integers also grow by 1, because 1 % of a small integer rounds to 0."""

FAILURES: tuple[tuple[str, Label, Callable[[str], str]], ...] = (
    ("open bracket", "syntax", lambda source: source.replace("class ModelNew(", "class ModelNew((", 1)),
    ("missing import", "build", lambda source: "import torch_kernels_that_nobody_has\n" + source),
    ("unknown attribute", "runtime", _with("return self.scales_that_nobody_made * result")),
    ("a hundredth too large", "wrong-output", _each(_LARGER)),
    ("zeros", "wrong-output", _each("_torch.zeros_like(one)")),
    ("one dimension more", "contract", _each("one.unsqueeze(0)")),
    ("double precision", "contract", _each("one.double()")),
    ("never returns", "timeout", _with("while True:", "    result = result")),
    ("a million times the memory", "memory", _with("return _torch.empty(1 << 50, device=inputs[0].device)")),
    ("ends the process", "crash", _with("import os", "os.abort()")),
    ("forty times", "slow", _with("for _ in range(40):", "    result = _right(self, *inputs)", "return result")),
)
"""Name of the fault, label of the mutant, and the mutation of a correct program."""


def kernel_with_unknown_name(source: str) -> str | None:
    """Return a mutant whose CUDA C++ uses an undefined name; None for a program without `blockIdx.x`."""
    return source.replace("blockIdx.x", "blockIndex.x") if "blockIdx.x" in source else None
