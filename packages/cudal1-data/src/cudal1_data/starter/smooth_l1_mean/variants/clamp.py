import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, pred, target):
        d = (pred - target).abs_()
        c = d.clamp(max=1.0)
        return d.sub_(c, alpha=0.5).mul_(c).mean()
