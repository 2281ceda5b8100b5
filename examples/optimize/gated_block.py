"""A pre-norm feed-forward block: RMSNorm, then SwiGLU, then the residual.

cudal1-agent optimize examples/optimize/gated_block.py
"""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS = 512
WIDTH = 256
HIDDEN = 512


class GatedBlock(nn.Module):
    """y = x + down(silu(gate(n)) * up(n)) with n = RMSNorm(x)."""

    def __init__(self, width: int, hidden: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(width))
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.scale
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def init_inputs() -> list[object]:
    return [WIDTH, HIDDEN]


def example_inputs() -> list[object]:
    return [torch.randn(TOKENS, WIDTH)]
