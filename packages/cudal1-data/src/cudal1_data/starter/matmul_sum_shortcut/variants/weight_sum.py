import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.linear = nn.Linear(i, o)

    def forward(self, x):
        w = self.linear.weight.sum(0)
        return (x @ w + self.linear.bias.sum()).unsqueeze(1)
