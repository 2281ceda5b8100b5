import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x - x.mean(0)
        return y.square_().sum(0).div_(x.shape[0] - 1)
