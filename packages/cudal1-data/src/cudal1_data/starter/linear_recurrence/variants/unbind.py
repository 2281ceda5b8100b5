import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        a = torch.sigmoid(self.decay)
        y = x.clone()
        h, *rest = y.unbind(1)
        for z in rest:
            h = z.addcmul_(a, h)
        return y
