import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        r = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
        return x * r * self.weight
