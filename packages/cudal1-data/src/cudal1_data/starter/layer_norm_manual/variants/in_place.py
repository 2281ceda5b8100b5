import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        y = x - x.mean(-1, keepdim=True)
        r = (y * y).mean(-1, keepdim=True).add_(1e-5).rsqrt_()
        return y.mul_(r).mul_(self.weight).add_(self.bias)
