import torch
from torch import nn


class ModelNew(nn.Module):
    """Incorrect on purpose: the weight of the classes is left out."""

    def __init__(self, alpha, gamma):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, targets):
        p = torch.sigmoid(logits)
        entropy = nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return ((p + targets - 2 * p * targets) ** self.gamma * entropy).mean()
