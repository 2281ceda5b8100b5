import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.linear = nn.Linear(i, o)

    def forward(self, x):
        w, b = self.linear.weight, self.linear.bias
        one = torch.ones_like(b).unsqueeze(0)
        return F.linear(x, one @ w, one @ b)
