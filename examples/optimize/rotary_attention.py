"""Causal attention over heads whose queries and keys are rotated by their positions.

cudal1-agent optimize examples/optimize/rotary_attention.py:RotaryAttention
"""

import torch
from torch import nn

BATCH = 4
HEADS = 4
LENGTH = 256
DIM = 64


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    first = x[..., :half]
    second = x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class RotaryAttention(nn.Module):
    """softmax(rotated(q) rotated(k)^T / sqrt(d), causal) v."""

    cos: torch.Tensor
    sin: torch.Tensor
    later: torch.Tensor

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        rates = 10000.0 ** (-torch.arange(0, dim // 2) / (dim // 2))
        angles = torch.arange(length)[:, None] * rates[None, :]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("later", torch.ones(length, length).triu(1).bool())
        self.dim = dim

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q = rotated(q, self.cos, self.sin)
        k = rotated(k, self.cos, self.sin)
        scores = torch.matmul(q, k.transpose(-2, -1)) / self.dim**0.5
        scores = scores.masked_fill(self.later, float("-inf"))
        return torch.matmul(torch.softmax(scores, dim=-1), v)


def init_inputs() -> list[object]:
    return [LENGTH, DIM]


def example_inputs() -> list[object]:
    shape = (BATCH, HEADS, LENGTH, DIM)
    return [torch.randn(shape), torch.randn(shape), torch.randn(shape)]
