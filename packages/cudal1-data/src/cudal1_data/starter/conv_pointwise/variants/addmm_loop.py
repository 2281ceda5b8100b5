import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.proj = nn.Linear(in_ch, out_ch)

    def forward(self, x):
        n, c, h, w = x.shape
        b = self.proj.bias[:, None]
        y = x.new_empty(n, b.shape[0], h * w)
        for i in range(n):
            torch.addmm(b, self.proj.weight, x[i].view(c, h * w), out=y[i])
        return y.view(n, -1, h, w)
