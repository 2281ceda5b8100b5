import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch, p):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_ch, out_ch, p, stride=p)

    def forward(self, x):
        p = self.up.kernel_size
        return nn.functional.conv_transpose2d(x, self.up.weight, self.up.bias, stride=p)
