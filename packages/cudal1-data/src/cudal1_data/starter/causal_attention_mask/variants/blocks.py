import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        out = []
        for i in range(0, q.shape[2], 64):
            s = torch.matmul(q[:, :, i : i + 64], k[:, :, : i + 64].transpose(2, 3))
            s.mul_(q.shape[3] ** -0.5)
            later = torch.ones(s.shape[2:], dtype=torch.bool, device=q.device).triu_(i + 1)
            p = s.masked_fill_(later, float("-inf")).softmax(dim=3)
            out.append(torch.matmul(p, v[:, :, : i + 64]))
        return torch.cat(out, dim=2)
