import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        n = torch.linalg.vector_norm(a, dim=1) * torch.linalg.vector_norm(b, dim=1)
        return (a * b).sum(1).div_(n.clamp_(min=1e-8)).neg_().add_(1.0)
