import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        t = q.shape[2]
        s = torch.matmul(q, k.transpose(2, 3)).div_(q.shape[3] ** 0.5)
        later = torch.ones(t, t, dtype=torch.bool, device=q.device).triu_(1)
        s.masked_fill_(later, float("-inf"))
        return torch.matmul(torch.softmax(s, dim=3), v)
