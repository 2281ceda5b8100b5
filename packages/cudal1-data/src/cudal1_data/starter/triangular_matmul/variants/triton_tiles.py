import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def product(a, b, y, N, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    # Rows with many terms come first.
    top = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK
    far = tl.program_id(0) * BLOCK
    row = (top + tl.arange(0, BLOCK))[:, None]
    col = (far + tl.arange(0, BLOCK))[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    # Terms before `far` are zero in b, those behind the last row in a; above the diagonal none is left.
    for start in range(far, min(top + BLOCK, N), BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        across, down = k[None, :], k[:, None]
        p = tl.load(a + row.to(tl.int64) * N + across, mask=(row < N) & (across <= row), other=0.0)
        q = tl.load(b + down.to(tl.int64) * N + col, mask=(down < N) & (col <= down), other=0.0)
        total = tl.dot(p, q, total, input_precision="ieee")
    tl.store(y + row.to(tl.int64) * N + col, total, mask=(row < N) & (col < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        n = a.shape[0]
        y = torch.empty((n, n), device=a.device, dtype=torch.float32)
        tiles = triton.cdiv(n, 128)
        sizes = {"BLOCK": 128, "BLOCK_K": 16}
        product[(tiles, tiles)](a.contiguous(), b.contiguous(), y, n, **sizes, num_warps=8, num_stages=3)
        return y
