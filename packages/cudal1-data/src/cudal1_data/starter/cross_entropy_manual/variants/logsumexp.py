import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, logits, target):
        t = logits.gather(1, target.unsqueeze(1)).squeeze(1)
        return torch.logsumexp(logits, 1).sub_(t).mean()
