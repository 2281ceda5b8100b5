import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        a = torch.sigmoid(self.decay)
        y, s = x, 1
        while s < x.shape[1]:
            z = y.clone()
            z[:, s:].addcmul_(a, y[:, :-s])
            y, a, s = z, a * a, 2 * s
        return y
