import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.shape[1]
        ones = x.new_ones(n, n).tril_()
        return nn.functional.linear(x, ones)
