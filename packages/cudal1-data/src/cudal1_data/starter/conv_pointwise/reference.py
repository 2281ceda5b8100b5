import torch
import torch.nn as nn

BATCH = 4
IN_CH = 32
OUT_CH = 64
H = 64
W = 64


class Model(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.proj = nn.Linear(in_ch, out_ch)

    def forward(self, x):
        x = x.permute(0, 2, 3, 1).contiguous()
        y = self.proj(x)
        return y.permute(0, 3, 1, 2).contiguous()


def get_inputs():
    return [torch.randn(BATCH, IN_CH, H, W)]


def get_init_inputs():
    return [IN_CH, OUT_CH]
