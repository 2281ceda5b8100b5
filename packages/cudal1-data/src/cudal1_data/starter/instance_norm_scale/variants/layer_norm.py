import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        y = F.layer_norm(x, x.shape[2:], eps=1e-5)
        return y.mul_(self.weight.view(-1, 1, 1))
