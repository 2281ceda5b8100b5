import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        h, w = x.shape[2] - self.k + 1, x.shape[3] - self.k + 1
        y = x[:, :, :h, :w].clone()
        for i in range(self.k):
            for j in range(self.k):
                torch.maximum(y, x[:, :, i : i + h, j : j + w], out=y)
        return y
