import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ch, 1, 3, 3) / 3)
        self.bias = nn.Parameter(torch.randn(ch) / 3)

    def forward(self, x):
        h, w = x.shape[2:]
        p = nn.functional.pad(x, (1, 1, 1, 1))
        y = self.bias[:, None, None].expand_as(x).contiguous()
        for i in range(3):
            for j in range(3):
                y.addcmul_(p[:, :, i : i + h, j : j + w], self.weight[:, :, i, j, None])
        return y
