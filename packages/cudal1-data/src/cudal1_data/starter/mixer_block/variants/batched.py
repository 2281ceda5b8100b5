import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, tokens, dim, hidden):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mix1 = nn.Linear(tokens, hidden)
        self.mix2 = nn.Linear(hidden, tokens)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        n, gelu = len(x), nn.functional.gelu
        w = self.mix1.weight.expand(n, -1, -1)
        v = self.mix2.weight.expand(n, -1, -1)
        y = gelu(torch.baddbmm(self.mix1.bias[:, None], w, self.norm1(x)))
        x = torch.baddbmm(self.mix2.bias[:, None], v, y).add_(x)
        return self.fc2(gelu(self.fc1(self.norm2(x)))).add_(x)
