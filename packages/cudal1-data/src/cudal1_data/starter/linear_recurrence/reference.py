import torch
import torch.nn as nn

BATCH = 4
T = 384
D = 64


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        a = torch.sigmoid(self.decay)
        h = torch.zeros_like(x[:, 0])
        out = []
        for t in range(x.shape[1]):
            h = a * h + x[:, t]
            out.append(h)
        return torch.stack(out, dim=1)


def get_inputs():
    return [torch.randn(BATCH, T, D)]


def get_init_inputs():
    return [D]
