import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        y = x * x
        r = y.mean(-1, keepdim=True).add_(1e-5).rsqrt_()
        return torch.mul(x, r, out=y).mul_(self.weight)
