import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        s = torch.matmul(q * q.shape[3] ** -0.5, k.transpose(2, 3))
        return torch.matmul(s.softmax(dim=3), v)
