import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, pred, target):
        return F.huber_loss(pred, target)
