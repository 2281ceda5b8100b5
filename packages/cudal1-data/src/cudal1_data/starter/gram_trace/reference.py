import torch
import torch.nn as nn

B = 48
N = 160
K = 128


class Model(nn.Module):
    def forward(self, a, b):
        return (a.transpose(1, 2) @ b).diagonal(dim1=1, dim2=2).sum(1)


def get_inputs():
    return [torch.randn(B, N, K), torch.randn(B, N, K)]


def get_init_inputs():
    return []
