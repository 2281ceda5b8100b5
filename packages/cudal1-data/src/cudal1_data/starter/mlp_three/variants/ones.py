import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim, hidden, out):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, out)

    def forward(self, x):
        x = self.fc1(x).relu_()
        x = self.fc2(x).tanh_()
        w = x.new_ones(1, self.fc3.weight.shape[0]) @ self.fc3.weight
        return nn.functional.linear(x, w, self.fc3.bias.sum().view(1))
