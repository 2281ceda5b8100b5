import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
        return 1.0 - (a * b).sum(1)
