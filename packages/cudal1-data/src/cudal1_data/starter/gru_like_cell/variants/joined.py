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
        w = torch.cat((self.wz.weight, self.wr.weight, self.wn.weight))
        b = torch.cat((self.wz.bias, self.wr.bias, self.wn.bias))
        u = torch.cat((self.uz.weight, self.ur.weight)).t()
        v, d = self.un.weight.t(), h.shape[1]
        for g in nn.functional.linear(x.transpose(0, 1), w, b):
            z, r = torch.addmm(g[:, : 2 * d], h, u).sigmoid_().chunk(2, 1)
            n = torch.addmm(g[:, 2 * d :], r.mul_(h), v).tanh_()
            h = n.lerp_(h, z)
            out.append(h)
        return torch.stack(out, dim=1)
