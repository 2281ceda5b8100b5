import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        s = x.abs().neg_().exp_().log1p_()
        s.add_(x.clamp(min=0.0))
        return torch.tanh(s).mul_(x).add_(s)
