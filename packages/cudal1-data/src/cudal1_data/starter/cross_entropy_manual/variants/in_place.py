import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, logits, target):
        m = logits.amax(1, keepdim=True)
        s = (logits - m).exp_().sum(1, keepdim=True)
        t = logits.gather(1, target.unsqueeze(1))
        return s.log_().add_(m.sub_(t)).mean()
