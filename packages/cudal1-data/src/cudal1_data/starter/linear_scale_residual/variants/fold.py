import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, i, o, scale):
        super().__init__()
        self.linear = nn.Linear(i, o)
        self.scale = scale

    def forward(self, x):
        s = 1.0 + self.scale
        return F.linear(x, self.linear.weight * s, self.linear.bias * s)
