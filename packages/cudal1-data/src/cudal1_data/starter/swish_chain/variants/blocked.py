import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        for i in range(0, len(x), 64):
            a, b = x[i : i + 64], y[i : i + 64]
            torch.sigmoid(a, out=b)
            b.mul_(a).clamp_(-0.2, 2.0)
            b.add_(a, alpha=0.25).mul_(2.0).sub_(0.25)
        return y
