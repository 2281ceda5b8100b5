import torch
import torch.nn as nn

B = 512
N = 24
K = 32
M = 24


class Model(nn.Module):
    def forward(self, a, b):
        return torch.stack([a[i] @ b[i] for i in range(len(a))])


def get_inputs():
    return [torch.randn(B, N, K), torch.randn(B, K, M)]


def get_init_inputs():
    return []
