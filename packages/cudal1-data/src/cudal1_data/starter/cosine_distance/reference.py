import torch
import torch.nn as nn

B = 1024
N = 1024


class Model(nn.Module):
    def forward(self, a, b):
        dot = torch.sum(a * b, dim=1)
        na = torch.sqrt(torch.sum(a * a, dim=1))
        nb = torch.sqrt(torch.sum(b * b, dim=1))
        return 1.0 - dot / torch.clamp(na * nb, min=1e-8)


def get_inputs():
    a = torch.randn(B, N)
    return [a, torch.randn(B, N) + a * torch.randn(B, 1)]


def get_init_inputs():
    return []
