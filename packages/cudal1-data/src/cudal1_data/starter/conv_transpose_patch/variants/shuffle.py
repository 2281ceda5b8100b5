import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch, p):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_ch, out_ch, p, stride=p)

    def forward(self, x):
        k = self.up.weight
        c, p = k.shape[0], k.shape[3]
        k = k.view(c, -1).t()[:, :, None, None]
        y = nn.functional.conv2d(x, k, self.up.bias.repeat_interleave(p * p))
        return nn.functional.pixel_shuffle(y, p)
