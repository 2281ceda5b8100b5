import torch
import torch.nn as nn

BATCH = 8
IN_CH = 3
OUT_CH = 32
H = 64
W = 64


class Model(nn.Module):
    def __init__(self, in_ch, out_ch, scale):
        super().__init__()
        self.conv = nn.Conv2d(in_ch, out_ch, 3, padding=1)
        self.shift = nn.Parameter(torch.randn(out_ch, 1, 1))
        self.scale = scale

    def forward(self, x):
        y = self.conv(x)
        y = y + self.shift
        y = torch.relu(y)
        return y * self.scale


def get_inputs():
    return [torch.randn(BATCH, IN_CH, H, W)]


def get_init_inputs():
    return [IN_CH, OUT_CH, 1.5]
