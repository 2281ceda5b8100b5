import torch
import torch.nn as nn

N = 1024
M = 1536


class Model(nn.Module):
    def forward(self, a, b):
        x = a.unsqueeze(1) @ torch.ones_like(b).unsqueeze(0)
        y = torch.ones_like(a).unsqueeze(1) @ b.unsqueeze(0)
        return x + y


def get_inputs():
    return [torch.randn(N), torch.randn(M)]


def get_init_inputs():
    return []
