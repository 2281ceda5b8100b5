import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        a = torch.sigmoid(self.decay)
        y = x.clone()
        for t in range(1, x.shape[1]):
            y[:, t].addcmul_(a, y[:, t - 1])
        return y
