import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        y = x - x.mean(-1, keepdim=True)
        n = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        r = n.square_().div_(x.shape[-1]).add_(1e-5).rsqrt_()
        return torch.addcmul(self.bias, y.mul_(r), self.weight)
