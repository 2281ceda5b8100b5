import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x - x.mean(0, keepdim=True)
        return (y * y).sum(0) / (x.shape[0] - 1)
