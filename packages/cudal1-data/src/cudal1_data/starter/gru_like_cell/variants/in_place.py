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
            z = self.wz(s).add_(self.uz(h)).sigmoid_()
            r = self.wr(s).add_(self.ur(h)).sigmoid_()
            n = self.wn(s).add_(self.un(r.mul_(h))).tanh_()
            h = n.lerp_(h, z)
            out.append(h)
        return torch.stack(out, dim=1)
