import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        h, w = x.shape[2] - self.k + 1, x.shape[3] - self.k + 1
        y = x.new_zeros(*x.shape[:2], h, w)
        for i in range(self.k):
            for j in range(self.k):
                y += x[:, :, i : i + h, j : j + w]
        return y.div_(self.k * self.k)
