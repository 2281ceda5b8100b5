import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ch, 1, 3, 3) / 3)
        self.bias = nn.Parameter(torch.randn(ch) / 3)

    def forward(self, x):
        x = x.to(memory_format=torch.channels_last)
        y = nn.functional.conv2d(x, self.weight, self.bias, padding=1, groups=x.shape[1])
        return y.contiguous()
