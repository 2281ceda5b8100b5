import torch
import torch.nn as nn

N = 16384
K = 16
M = 16


class Model(nn.Module):
    def forward(self, a, b):
        return (a.unsqueeze(2) * b.unsqueeze(1)).sum(0)


def get_inputs():
    return [torch.randn(N, K), torch.randn(N, M)]


def get_init_inputs():
    return []
