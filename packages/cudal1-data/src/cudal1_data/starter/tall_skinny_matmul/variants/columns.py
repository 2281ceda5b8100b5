import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        a = a.T.contiguous()
        return torch.stack([row @ b for row in a])
