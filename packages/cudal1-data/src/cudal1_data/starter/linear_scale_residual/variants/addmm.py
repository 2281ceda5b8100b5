import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, i, o, scale):
        super().__init__()
        self.linear = nn.Linear(i, o)
        self.scale = scale

    def forward(self, x):
        s = 1.0 + self.scale
        return torch.addmm(self.linear.bias, x, self.linear.weight.T, beta=s, alpha=s)
