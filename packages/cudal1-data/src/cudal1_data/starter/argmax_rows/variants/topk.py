import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.topk(x, 1, dim=1)[1].squeeze(1)
