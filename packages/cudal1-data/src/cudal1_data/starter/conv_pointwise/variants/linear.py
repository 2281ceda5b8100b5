import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.proj = nn.Linear(in_ch, out_ch)

    def forward(self, x):
        y = nn.functional.linear(x.movedim(1, 3), self.proj.weight, self.proj.bias)
        return y.movedim(3, 1).contiguous()
