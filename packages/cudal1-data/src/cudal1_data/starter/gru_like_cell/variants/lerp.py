import torch
import torch.nn as nn


class ModelNew(nn.Module):
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
        for s in x.unbind(1):
            z = torch.sigmoid(self.wz(s) + self.uz(h))
            r = torch.sigmoid(self.wr(s) + self.ur(h))
            n = torch.tanh(self.wn(s) + self.un(r * h))
            h = torch.lerp(n, h, z)
            out.append(h)
        return torch.stack(out, dim=1)
