import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, logits, target):
        y = torch.log_softmax(logits, 1)
        return y.gather(1, target.unsqueeze(1)).mean().neg_()
