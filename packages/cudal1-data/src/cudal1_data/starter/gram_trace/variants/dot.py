import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a.reshape(len(a), 1, -1), b.reshape(len(b), -1, 1)).flatten()
