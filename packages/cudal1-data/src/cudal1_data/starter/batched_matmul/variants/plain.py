import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.cat([torch.mm(a[i], b[i])[None] for i in range(len(a))])
