import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(in_ch, out_ch, 4) / in_ch**0.5)
        self.bias = nn.Parameter(torch.randn(out_ch) / 3)

    def forward(self, x):
        n, c, t = x.shape
        o = self.weight.shape[1]
        w = self.weight.view(c, o, 2, 2).flip(2).permute(3, 1, 0, 2).reshape(2 * o, c, 2)
        y = nn.functional.conv1d(x, w, self.bias.repeat(2), padding=1)
        return y.view(n, 2, o, t + 1).permute(0, 2, 3, 1).reshape(n, o, 2 * t + 2)
