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
        x = x.transpose(0, 1).contiguous()
        for a, b, c in zip(self.wz(x), self.wr(x), self.wn(x), strict=True):
            z = torch.addmm(a, h, self.uz.weight.t()).sigmoid_()
            r = torch.addmm(b, h, self.ur.weight.t()).sigmoid_()
            n = torch.addmm(c, r.mul_(h), self.un.weight.t()).tanh_()
            h = n.lerp_(h, z)
            out.append(h)
        return torch.stack(out, dim=1)
