import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) / i**0.5)
        self.bias = nn.Parameter(torch.randn(o))

    def forward(self, x):
        h = torch.addmm(self.bias, x, self.weight.T)
        return 0.5 * h * (1.0 + torch.erf(h * 0.5**0.5))
