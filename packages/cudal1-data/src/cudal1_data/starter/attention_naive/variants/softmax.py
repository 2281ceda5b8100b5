import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        s = torch.matmul(q, k.transpose(2, 3)) / q.shape[3] ** 0.5
        return torch.matmul(torch.softmax(s, dim=3), v)
