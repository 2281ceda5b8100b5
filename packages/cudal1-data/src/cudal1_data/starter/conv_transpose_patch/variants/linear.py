import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch, p):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_ch, out_ch, p, stride=p)

    def forward(self, x):
        n, c, h, w = x.shape
        o, p = self.up.weight.shape[1:3]
        k = self.up.weight.view(c, -1)
        b = self.up.bias.repeat_interleave(p * p)
        y = torch.addmm(b, x.permute(0, 2, 3, 1).reshape(-1, c), k)
        return y.view(n, h, w, o, p, p).permute(0, 3, 1, 4, 2, 5).reshape(n, o, h * p, w * p)
