import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        r, n = x.shape
        p = nn.functional.pad(x, (0, -n % 32)).view(r, -1, 32)
        y = p @ x.new_ones(32, 32).triu_()
        y[:, 1:] += y[:, :-1, 31:].cumsum(dim=1)
        return y.view(r, -1)[:, :n].contiguous()
