"""Allows or forbids TF32, in every process that runs a program."""

from __future__ import annotations

import torch


def allow_tf32(allowed: bool) -> None:
    """Allow or forbid products and convolutions on a GPU to round their factors to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
