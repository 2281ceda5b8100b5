import torch
import torch.nn as nn

B = 2048
N = 1024


class Model(nn.Module):
    def forward(self, x):
        return torch.argmax(x, dim=1)


def get_inputs():
    return [torch.randn(B, N)]


def get_init_inputs():
    return []
