import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x * x
        r = y.sum(1, keepdim=True).clamp_(min=1e-24).rsqrt_()
        return torch.mul(x, r, out=y)
