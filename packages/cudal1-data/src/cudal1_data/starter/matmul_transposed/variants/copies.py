import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        x = a.T.contiguous()
        y = b.T.contiguous()
        return (x @ y).T.contiguous()
