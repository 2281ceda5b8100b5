import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(in_ch, out_ch, 4) / in_ch**0.5)
        self.bias = nn.Parameter(torch.randn(out_ch) / 3)

    def forward(self, x):
        return nn.functional.conv_transpose1d(x, self.weight, self.bias, stride=2)
