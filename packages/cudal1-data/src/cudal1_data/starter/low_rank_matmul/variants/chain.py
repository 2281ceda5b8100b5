import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, u, v):
        return torch.linalg.multi_dot([x, u, v])
