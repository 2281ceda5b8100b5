import torch
import torch.nn as nn

BATCH = 24
TOKENS = 64
DIM = 64
HIDDEN = 128


class Model(nn.Module):
    def __init__(self, tokens, dim, hidden):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mix1 = nn.Linear(tokens, hidden)
        self.mix2 = nn.Linear(hidden, tokens)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def gelu(self, x):
        return 0.5 * x * (1 + torch.erf(x / 2**0.5))

    def forward(self, x):
        y = self.norm1(x).transpose(1, 2)
        y = self.mix2(self.gelu(self.mix1(y)))
        x = x + y.transpose(1, 2)
        y = self.fc2(self.gelu(self.fc1(self.norm2(x))))
        return x + y


def get_inputs():
    return [torch.randn(BATCH, TOKENS, DIM)]


def get_init_inputs():
    return [TOKENS, DIM, HIDDEN]
