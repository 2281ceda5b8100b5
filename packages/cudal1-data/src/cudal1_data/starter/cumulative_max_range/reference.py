import torch
import torch.nn as nn

B = 32
T = 128
C = 96


class Model(nn.Module):
    def forward(self, x):
        high = torch.cummax(x, dim=1)[0]
        low = torch.cummin(x, dim=1)[0]
        return high[:, -1] - low[:, -1]


def get_inputs():
    return [torch.randn(B, T, C) * (0.5 + torch.rand(B, 1, C))]


def get_init_inputs():
    return []
