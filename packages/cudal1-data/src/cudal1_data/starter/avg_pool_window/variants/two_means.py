import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        y = x.unfold(3, self.k, 1).mean(dim=4)
        return y.unfold(2, self.k, 1).mean(dim=4)
