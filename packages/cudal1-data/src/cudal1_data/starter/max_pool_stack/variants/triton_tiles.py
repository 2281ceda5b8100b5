import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pool(x, y, height, width, high, wide, K: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    inside = (row < high) & (col < wide)
    plane = tl.program_id(2).to(tl.int64)
    place = x + plane * height * width + row * width + col
    most = tl.load(place, mask=inside, other=0.0)
    for i in tl.static_range(K):
        for j in tl.static_range(K):
            most = tl.maximum(most, tl.load(place + i * width + j, mask=inside, other=0.0))
    tl.store(y + plane * high * wide + row * wide + col, most, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        n, c, h, w = x.shape
        high, wide = h - self.k + 1, w - self.k + 1
        y = torch.empty((n, c, high, wide), device=x.device, dtype=torch.float32)
        grid = (triton.cdiv(wide, 128), triton.cdiv(high, 8), n * c)
        pool[grid](x.contiguous(), y, h, w, high, wide, K=self.k, ROWS=8, COLS=128, num_warps=4)
        return y
