import torch
import torch.nn as nn

B = 512
N = 1024


class Model(nn.Module):
    def forward(self, pred, target):
        diff = torch.abs(pred - target)
        square = 0.5 * diff * diff
        line = diff - 0.5
        loss = torch.where(diff < 1.0, square, line)
        return torch.mean(loss)


def get_inputs():
    return [torch.randn(B, N) * (0.5 + 2 * torch.rand(1)), torch.randn(B, N) * (0.5 + 2 * torch.rand(1))]


def get_init_inputs():
    return []
