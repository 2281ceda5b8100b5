import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, a, b):
        return 1.0 - F.cosine_similarity(a, b, dim=1)
