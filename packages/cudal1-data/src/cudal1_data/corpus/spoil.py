"""Labelled failures: a right program, spoilt in one way."""

from __future__ import annotations

from collections.abc import Callable

from cudal1_data.corpus.model import Label

_AFTER = """
import torch

_right = ModelNew.forward


def _spoilt(self, *inputs):
    result = _right(self, *inputs)
{lines}


ModelNew.forward = _spoilt
"""


def _wrapped(*lines: str) -> Callable[[str], str]:
    text = _AFTER.format(lines="\n".join(f"    {line}" for line in lines))
    return lambda source: source.rstrip() + "\n" + text


_ALL = "whole = [result] if isinstance(result, torch.Tensor) else list(result)"
_BACK = "return whole[0] if isinstance(result, torch.Tensor) else tuple(whole)"
_LARGER = "one * 1.01 if one.is_floating_point() else (one * 1.01 + 1).to(one.dtype)"
"""A hundredth of a small integer is lost in its dtype, and another dtype is another fault."""

SPOILS: tuple[tuple[str, Label, Callable[[str], str]], ...] = (
    ("open bracket", "syntax", lambda source: source.replace("class ModelNew(", "class ModelNew((", 1)),
    ("missing import", "build", lambda source: "import torch_kernels_that_nobody_has\n" + source),
    ("unknown attribute", "runtime", _wrapped("return self.scales_that_nobody_made * result")),
    ("a hundredth too large", "wrong-output", _wrapped(_ALL, f"whole = [{_LARGER} for one in whole]", _BACK)),
    ("zeros", "wrong-output", _wrapped(_ALL, "whole = [torch.zeros_like(one) for one in whole]", _BACK)),
    ("one dimension more", "contract", _wrapped(_ALL, "whole = [one.unsqueeze(0) for one in whole]", _BACK)),
    ("double precision", "contract", _wrapped(_ALL, "whole = [one.double() for one in whole]", _BACK)),
    ("never returns", "timeout", _wrapped("while True:", "    result = result")),
    ("a million times the memory", "memory", _wrapped("return torch.empty(1 << 50, device=inputs[0].device)")),
    ("ends the process", "crash", _wrapped("import os", "os.abort()")),
    ("forty times", "slow", _wrapped("for _ in range(40):", "    result = _right(self, *inputs)", "return result")),
)
"""Name, label, and what is done to a right program."""


def spoilt_kernel(source: str) -> str | None:
    """Return a program whose CUDA C++ names something that does not exist; None where it has none."""
    return source.replace("blockIdx.x", "blockIndex.x") if "blockIdx.x" in source else None
