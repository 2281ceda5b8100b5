import torch
import torch.nn as nn

N = 48
K = 48
P = 48
Q = 48


class Model(nn.Module):
    def forward(self, a, b, x):
        return torch.kron(a, b) @ x


def get_inputs():
    return [torch.randn(N, K), torch.randn(P, Q), torch.randn(K * Q)]


def get_init_inputs():
    return []
