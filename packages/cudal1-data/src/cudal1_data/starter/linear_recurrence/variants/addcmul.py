import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        a = torch.sigmoid(self.decay)
        h = x[:, 0]
        out = [h]
        for t in range(1, x.shape[1]):
            h = torch.addcmul(x[:, t], a, h)
            out.append(h)
        return torch.stack(out, dim=1)
