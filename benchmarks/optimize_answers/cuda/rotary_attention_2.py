import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    """Incorrect on purpose: keys are not rotated."""

    def __init__(self, length, dim):
        super().__init__()
        rates = 10000.0 ** (-torch.arange(0, dim // 2) / (dim // 2))
        angles = torch.arange(length)[:, None] * rates[None, :]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("later", torch.ones(length, length).triu(1).bool())

    def forward(self, q, k, v):
        first, second = q.chunk(2, dim=-1)
        q = torch.cat([first * self.cos - second * self.sin, second * self.cos + first * self.sin], dim=-1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
