import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.conv = nn.Conv2d(in_ch, out_ch, 3, padding=1)
        self.norm = nn.BatchNorm2d(out_ch)
        self.eval()

    def forward(self, x):
        s = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
        w = self.conv.weight * s[:, None, None, None]
        b = (self.conv.bias - self.norm.running_mean) * s + self.norm.bias
        return nn.functional.conv2d(x, w, b, padding=1)
