import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x * x
        y.mul_(0.07135481627272281).add_(1.5957691216057308)
        return y.mul_(x).sigmoid_().mul_(x)
