import torch
import torch.nn as nn

B = 192
D = 1024
R = 16


class Model(nn.Module):
    def forward(self, x, u, v):
        return x @ (u @ v)


def get_inputs():
    return [torch.randn(B, D), torch.randn(D, R), torch.randn(R, D)]


def get_init_inputs():
    return []
