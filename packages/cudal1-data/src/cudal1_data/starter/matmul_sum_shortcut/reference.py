import torch
import torch.nn as nn

B = 256
I = 384
O = 1024


class Model(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.linear = nn.Linear(i, o)

    def forward(self, x):
        return self.linear(x).sum(1, keepdim=True)


def get_inputs():
    return [torch.randn(B, I)]


def get_init_inputs():
    return [I, O]
