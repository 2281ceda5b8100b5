import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.linear = nn.Linear(i, o)

    def forward(self, x):
        return (x @ self.linear.weight.T + self.linear.bias).sum(1, keepdim=True)
