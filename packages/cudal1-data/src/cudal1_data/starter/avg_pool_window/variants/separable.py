import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        k = self.k
        h, w = x.shape[2] - k + 1, x.shape[3] - k + 1
        r = x[:, :, :h].clone()
        for i in range(1, k):
            r += x[:, :, i : i + h]
        y = r[:, :, :, :w].clone()
        for j in range(1, k):
            y += r[:, :, :, j : j + w]
        return y.div_(k * k)
