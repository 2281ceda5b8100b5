import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def window_means(x, y, h, w, K: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    height = h - K + 1
    width = w - K + 1
    plane = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.program_id(2) * COLS + tl.arange(0, COLS)[None, :]
    inside = (row < height) & (col < width)
    from_here = x + plane * h * w + row * w + col
    total = tl.zeros([ROWS, COLS], tl.float32)
    for i in tl.static_range(K):
        for j in tl.static_range(K):
            total += tl.load(from_here + i * w + j, mask=inside, other=0.0)
    tl.store(y + plane * height * width + row * width + col, total / (K * K), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        k = self.k
        y = torch.empty(n, c, h - k + 1, w - k + 1, device=x.device, dtype=x.dtype)
        grid = (n * c, triton.cdiv(h - k + 1, 16), triton.cdiv(w - k + 1, 64))
        window_means[grid](x, y, h, w, K=k, ROWS=16, COLS=64, num_warps=4)
        return y
