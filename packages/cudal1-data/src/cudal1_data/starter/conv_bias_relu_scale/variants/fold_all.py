import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch, scale):
        super().__init__()
        self.conv = nn.Conv2d(in_ch, out_ch, 3, padding=1)
        self.shift = nn.Parameter(torch.randn(out_ch, 1, 1))
        self.scale = scale

    def forward(self, x):
        w = self.conv.weight * self.scale
        b = (self.conv.bias + self.shift.flatten()) * self.scale
        y = nn.functional.conv2d(x, w, b, padding=1)
        return y.relu_()
