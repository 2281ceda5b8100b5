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
        gelu = nn.functional.gelu
        y = torch.matmul(self.mix1.weight, self.norm1(x))
        y = gelu(y.add_(self.mix1.bias[:, None]))
        y = torch.matmul(self.mix2.weight, y)
        x = y.add_(self.mix2.bias[:, None]).add_(x)
        return self.fc2(gelu(self.fc1(self.norm2(x)))).add_(x)
