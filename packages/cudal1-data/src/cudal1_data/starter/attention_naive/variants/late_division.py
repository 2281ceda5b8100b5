import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        s = torch.matmul(q * q.shape[3] ** -0.5, k.transpose(2, 3))
        p = s.sub_(s.amax(dim=3, keepdim=True)).exp_()
        return torch.matmul(p, v).div_(p.sum(dim=3, keepdim=True))
