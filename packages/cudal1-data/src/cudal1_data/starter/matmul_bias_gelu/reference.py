import math

import torch
import torch.nn as nn

B = 512
I = 128
O = 1024


class Model(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) / math.sqrt(i))
        self.bias = nn.Parameter(torch.randn(o))

    def forward(self, x):
        h = x @ self.weight.T + self.bias
        return 0.5 * h * (1.0 + torch.erf(h / math.sqrt(2.0)))


def get_inputs():
    return [torch.randn(B, I)]


def get_init_inputs():
    return [I, O]
