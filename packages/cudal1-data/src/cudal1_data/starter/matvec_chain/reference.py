import torch
import torch.nn as nn

N = 512
K = 640
M = 512


class Model(nn.Module):
    def forward(self, a, b, v):
        return (a @ b) @ v


def get_inputs():
    return [torch.randn(N, K), torch.randn(K, M), torch.randn(M)]


def get_init_inputs():
    return []
