import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x * x
        y.mul_(0.03567740813636141).add_(0.7978845608028654)
        y.mul_(x).tanh_()
        return y.add_(1.0).mul_(x).mul_(0.5)
