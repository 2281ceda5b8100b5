import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ch, 1, 3, 3) / 3)
        self.bias = nn.Parameter(torch.randn(ch) / 3)

    def forward(self, x):
        y = torch.empty_like(x)
        for c in range(x.shape[1]):
            s = slice(c, c + 1)
            y[:, s] = nn.functional.conv2d(x[:, s], self.weight[s], self.bias[s], padding=1)
        return y
