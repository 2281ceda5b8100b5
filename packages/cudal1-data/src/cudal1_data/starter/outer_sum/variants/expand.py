import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        n, m = len(a), len(b)
        y = a.unsqueeze(1).repeat(1, m)
        return y.add_(b.expand(n, m))
