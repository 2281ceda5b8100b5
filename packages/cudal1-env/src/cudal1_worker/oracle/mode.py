"""A dispatch mode that starts at once."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):
    """A dispatch mode whose first operator does not import torch.compile.

    torch hides the method of each mode from its compiler, and the first call imports the compiler for that: 5 s in each
    oracle. Nothing is compiled while a mode of ours is on.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
