import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.sigmoid(x)
        y.mul_(x).clamp_(-0.2, 2.0)
        y.add_(x, alpha=0.25)
        return y.mul_(2.0).sub_(0.25)
