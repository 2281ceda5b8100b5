import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        m = x.shape[1] // 2
        y = torch.empty_like(x)
        y[:, :m] = x[:, :m] @ x.new_ones(m, m).triu_()
        m = x.shape[1] - m
        y[:, -m:] = x[:, -m:] @ x.new_ones(m, m).triu_()
        y[:, -m:] += y[:, -m - 1, None]
        return y
