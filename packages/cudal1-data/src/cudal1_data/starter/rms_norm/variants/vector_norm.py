import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        n = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        r = n.square_().div_(x.shape[-1]).add_(1e-5).rsqrt_()
        return (x * r).mul_(self.weight)
