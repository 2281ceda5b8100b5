import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        t = q.shape[2]
        m = torch.full((t, t), float("-inf"), device=q.device).triu_(1)
        s = torch.matmul(q * q.shape[3] ** -0.5, k.transpose(2, 3))
        return torch.matmul(s.add_(m).softmax(dim=3), v)
