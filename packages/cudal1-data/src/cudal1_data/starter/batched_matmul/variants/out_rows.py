import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
        for i in range(len(a)):
            torch.mm(a[i], b[i], out=y[i])
        return y
