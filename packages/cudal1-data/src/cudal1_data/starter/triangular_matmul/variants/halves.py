import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.tril(), b.tril()
        h = a.shape[0] // 2
        y = torch.zeros_like(a)
        torch.mm(a[:h, :h], b[:h, :h], out=y[:h, :h])
        torch.mm(a[h:], b[:, :h], out=y[h:, :h])
        torch.mm(a[h:, h:], b[h:, h:], out=y[h:, h:])
        return y
