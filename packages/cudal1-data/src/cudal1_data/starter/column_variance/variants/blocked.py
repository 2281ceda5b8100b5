import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        u, s = x.mean(0), torch.zeros_like(x[0])
        for a in x.split(64):
            s.add_((a - u).square_().sum(0))
        return s.div_(x.shape[0] - 1)
