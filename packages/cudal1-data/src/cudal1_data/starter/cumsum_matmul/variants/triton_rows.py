import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def prefix_sums(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    carry = 0.0
    for start in range(0, n, BLOCK):
        col = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + col, mask=col < n, other=0.0)
        tl.store(y + row + col, tl.cumsum(v, 0) + carry, mask=col < n)
        carry += tl.sum(v, 0)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        prefix_sums[(x.shape[0],)](x, y, x.shape[1], BLOCK=1024, num_warps=4)
        return y
