import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.tril(), b.tril()
        y = torch.zeros_like(a)
        for i in range(0, a.shape[0], 128):
            k = i + 128
            y[i:k, :k] = a[i:k, :k] @ b[:k, :k]
        return y
