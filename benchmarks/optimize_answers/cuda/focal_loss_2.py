import torch
from torch import nn


class ModelNew(nn.Module):
    """Incorrect on purpose: the loss of every second row, as an estimate of the mean."""

    def __init__(self, alpha, gamma):
        super().__init__()
        self.alpha = alpha
        self.gamma = gamma

    def forward(self, logits, targets):
        x, t = logits[::2], targets[::2]
        p = torch.sigmoid(x)
        entropy = nn.functional.binary_cross_entropy_with_logits(x, t, reduction="none")
        weight = self.alpha * t + (1 - self.alpha) * (1 - t)
        return (weight * (p + t - 2 * p * t) ** self.gamma * entropy).mean()
