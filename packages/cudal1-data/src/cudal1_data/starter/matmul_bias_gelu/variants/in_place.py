import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) / i**0.5)
        self.bias = nn.Parameter(torch.randn(o))

    def forward(self, x):
        h = torch.addmm(self.bias, x, self.weight.T)
        g = torch.erf(h * 0.5**0.5)
        return g.add_(1.0).mul_(h).mul_(0.5)
