import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.outer(a, torch.ones_like(b)) + torch.outer(torch.ones_like(a), b)
