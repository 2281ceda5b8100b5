"""Programs in KernelBench's form for tests."""

from __future__ import annotations

PROGRAM = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x * {factor}


N = 8


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
"""


def program(factor: int = 2) -> str:
    """A task in KernelBench's form; the factor tells one from another."""
    return PROGRAM.format(factor=factor)
