import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def focal_blocks(logits, targets, sums, count, alpha, gamma, SQUARE: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        places = start + tl.arange(0, BLOCK)
        inside = places < count
        x = tl.load(logits + places, mask=inside, other=0.0)
        t = tl.load(targets + places, mask=inside, other=0.0)
        small = tl.exp(-tl.abs(x))
        p = tl.where(x >= 0, 1.0, small) / (1.0 + small)
        entropy = tl.maximum(x, 0.0) - x * t + tl.log(1.0 + small)
        missed = p + t - 2.0 * p * t
        if SQUARE:
            power = missed * missed
        else:
            power = tl.exp(gamma * tl.log(missed))
        weight = (1.0 - alpha) + t * (2.0 * alpha - 1.0)
        total += tl.where(inside, weight * power * entropy, 0.0)
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))


class ModelNew(nn.Module):
    """One pass over both inputs; each block keeps its sum in registers, and one short kernel adds the blocks' sums."""

    def __init__(self, alpha, gamma):
        super().__init__()
        self.alpha = alpha
        self.gamma = gamma

    def forward(self, logits, targets):
        logits, targets = logits.contiguous(), targets.contiguous()
        count = logits.numel()
        blocks = min(triton.cdiv(count, 1024), 2112)
        sums = torch.empty(blocks, device=logits.device)
        focal_blocks[(blocks,)](logits, targets, sums, count, self.alpha, self.gamma, self.gamma == 2.0, 1024)
        return sums.sum() / count
