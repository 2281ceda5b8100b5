import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        n = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return x * n.clamp_(min=1e-12).reciprocal_()
