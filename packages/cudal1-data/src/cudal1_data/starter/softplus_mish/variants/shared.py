import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        s = F.softplus(x)
        y = torch.tanh(s)
        return y.mul_(x).add_(s)
