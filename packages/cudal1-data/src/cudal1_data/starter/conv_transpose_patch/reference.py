import torch
import torch.nn as nn

BATCH = 4
IN_CH = 32
OUT_CH = 16
P = 4
H = 32
W = 32


class Model(nn.Module):
    def __init__(self, in_ch, out_ch, p):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_ch, out_ch, p, stride=p)

    def forward(self, x):
        return self.up(x)


def get_inputs():
    return [torch.randn(BATCH, IN_CH, H, W)]


def get_init_inputs():
    return [IN_CH, OUT_CH, P]
