import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.proj = nn.Linear(in_ch, out_ch)

    def forward(self, x):
        n, c, h, w = x.shape
        y = torch.matmul(self.proj.weight, x.view(n, c, h * w))
        y.add_(self.proj.bias[:, None])
        return y.view(n, -1, h, w)
