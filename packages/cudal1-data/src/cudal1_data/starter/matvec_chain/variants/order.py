import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b, v):
        return a @ (b @ v)
