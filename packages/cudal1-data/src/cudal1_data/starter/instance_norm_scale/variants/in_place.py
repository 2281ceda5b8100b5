import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        y = x - x.mean((2, 3), keepdim=True)
        s = (y * y).mean((2, 3), keepdim=True).add_(1e-5).rsqrt_()
        return y.mul_(s.mul_(self.weight.view(-1, 1, 1)))
