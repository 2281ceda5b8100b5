import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        h, w = x.shape[2] - self.k + 1, x.shape[3] - self.k + 1
        r = x[:, :, :h].clone()
        for i in range(1, self.k):
            torch.maximum(r, x[:, :, i : i + h], out=r)
        y = r[:, :, :, :w].clone()
        for j in range(1, self.k):
            torch.maximum(y, r[:, :, :, j : j + w], out=y)
        return y
