import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b, x):
        k = torch.einsum("nk,pq->npkq", a, b)
        return k.reshape(-1, x.numel()) @ x
