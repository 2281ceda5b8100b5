import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        m = x.amax(1, keepdim=True)
        return (x - m).exp().sum(1, keepdim=True).log() + m
