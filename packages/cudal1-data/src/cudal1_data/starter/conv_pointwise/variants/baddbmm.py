import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.proj = nn.Linear(in_ch, out_ch)

    def forward(self, x):
        n, c, h, w = x.shape
        k = self.proj.weight.expand(n, -1, -1)
        y = torch.baddbmm(self.proj.bias[:, None], k, x.view(n, c, h * w))
        return y.view(n, -1, h, w)
