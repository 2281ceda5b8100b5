import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, i, o, scale):
        super().__init__()
        self.linear = nn.Linear(i, o)
        self.scale = scale

    def forward(self, x):
        y = self.linear(x)
        return self.scale * y + y
