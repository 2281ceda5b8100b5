import torch
import torch.nn as nn

BATCH = 4
CH = 8
H = 56
W = 56
K = 5


class Model(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        w = x.unfold(2, self.k, 1).unfold(3, self.k, 1)
        return w.mean(dim=(4, 5))


def get_inputs():
    return [torch.randn(BATCH, CH, H, W)]


def get_init_inputs():
    return [K]
