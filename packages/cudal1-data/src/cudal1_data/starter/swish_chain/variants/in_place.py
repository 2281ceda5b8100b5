import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.sigmoid(x)
        y.mul_(x).mul_(2.0).clamp_(-0.4, 4.0)
        return y.add_(x, alpha=0.5).sub_(0.25)
