import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        y = nn.functional.avg_pool2d(x, (self.k, 1), stride=1)
        return nn.functional.avg_pool2d(y, (1, self.k), stride=1)
