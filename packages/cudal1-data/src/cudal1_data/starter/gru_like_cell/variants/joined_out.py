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
        w = torch.cat((self.wz.weight, self.wr.weight, self.wn.weight))
        b = torch.cat((self.wz.bias, self.wr.bias, self.wn.bias))
        u = torch.cat((self.uz.weight, self.ur.weight)).t().contiguous()
        v, d = self.un.weight.t().contiguous(), h.shape[1]
        p = nn.functional.linear(x.transpose(0, 1), w, b)
        y = p[:, :, 2 * d :]
        for g, n in zip(p[:, :, : 2 * d], y, strict=True):
            z, r = g.addmm_(h, u).sigmoid_().split(d, 1)
            h = n.addmm_(r.mul_(h), v).tanh_().lerp_(h, z)
        return y.transpose(0, 1).contiguous()
