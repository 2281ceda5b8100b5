import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = x.clamp(max=20.0).exp_()
        n = (e + 2.0).mul_(e)
        s = e.log1p_().maximum(x)
        return n.div_(n + 2.0).mul_(x).add_(s)
