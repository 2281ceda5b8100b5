import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    """One fused attention instead of scores, mask, softmax and product."""

    def __init__(self, length, dim):
        super().__init__()
        rates = 10000.0 ** (-torch.arange(0, dim // 2) / (dim // 2))
        angles = torch.arange(length)[:, None] * rates[None, :]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("later", torch.ones(length, length).triu(1).bool())

    def rotated(self, x):
        half = x.shape[-1] // 2
        first, second = x[..., :half], x[..., half:]
        out = torch.empty_like(x)
        torch.mul(first, self.cos, out=out[..., :half]).addcmul_(second, self.sin, value=-1)
        torch.mul(second, self.cos, out=out[..., half:]).addcmul_(first, self.sin)
        return out

    def forward(self, q, k, v):
        allowed = ~self.later
        return F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, attn_mask=allowed)
