import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.sum(a[:, :, None] * b[:, None, :], dim=0)
