import torch
import torch.nn as nn

BATCH = 8
T = 48
DIM = 64
HIDDEN = 64


class Model(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.wz = nn.Linear(dim, hidden)
        self.wr = nn.Linear(dim, hidden)
        self.wn = nn.Linear(dim, hidden)
        self.uz = nn.Linear(hidden, hidden, bias=False)
        self.ur = nn.Linear(hidden, hidden, bias=False)
        self.un = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, h):
        out = []
        for t in range(x.shape[1]):
            z = torch.sigmoid(self.wz(x[:, t]) + self.uz(h))
            r = torch.sigmoid(self.wr(x[:, t]) + self.ur(h))
            n = torch.tanh(self.wn(x[:, t]) + self.un(r * h))
            h = (1 - z) * n + z * h
            out.append(h)
        return torch.stack(out, dim=1)


def get_inputs():
    return [torch.randn(BATCH, T, DIM), torch.randn(BATCH, HIDDEN)]


def get_init_inputs():
    return [DIM, HIDDEN]
