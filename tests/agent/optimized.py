"""Modules and programs for tests of optimize."""

from __future__ import annotations

from pathlib import Path

MODULE = """\
import torch
from torch import nn

ROWS = 64


class Scaled(nn.Module):
    def __init__(self, width, eps=1e-3):
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.tanh(x) * self.scale + self.eps


def init_inputs():
    return [8]


def example_inputs():
    return [torch.randn(ROWS, 8)]
"""

KERNEL = """\
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, eps=1e-3):
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(width))
        self.packed = None

    def forward(self, x):
        if self.packed is None:
            self.packed = self.scale.detach().clone()
        return torch.tanh(x).mul_(self.packed).add_(self.eps)
"""


def module_file(folder: Path, text: str = MODULE, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
