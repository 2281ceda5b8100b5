import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.proj = nn.Linear(in_ch, out_ch)

    def forward(self, x):
        w = self.proj.weight[:, :, None, None]
        return nn.functional.conv2d(x, w, self.proj.bias)
