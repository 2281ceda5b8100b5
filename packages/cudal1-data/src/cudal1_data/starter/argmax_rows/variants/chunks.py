import math

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.shape[1]
        k = math.gcd(n, 32)
        g = x.view(-1, n // k, k)
        i = g.amax(2).argmax(1)
        j = g[torch.arange(len(x), device=x.device), i].argmax(1)
        return i * k + j
