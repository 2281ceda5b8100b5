import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def depthwise(x, weight, bias, y, ch, h, w, ROWS: tl.constexpr, COLS: tl.constexpr):
    plane = tl.program_id(0)
    channel = plane % ch
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.program_id(2) * COLS + tl.arange(0, COLS)[None, :]
    start = plane.to(tl.int64) * h * w
    total = tl.zeros([ROWS, COLS], tl.float32) + tl.load(bias + channel)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            r = row + i - 1
            c = col + j - 1
            inside = (r >= 0) & (r < h) & (c >= 0) & (c < w)
            v = tl.load(x + start + r * w + c, mask=inside, other=0.0)
            total += v * tl.load(weight + channel * 9 + i * 3 + j)
    tl.store(y + start + row * w + col, total, mask=(row < h) & (col < w))


class ModelNew(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ch, 1, 3, 3) / 3)
        self.bias = nn.Parameter(torch.randn(ch) / 3)

    def forward(self, x):
        x = x.contiguous()
        n, ch, h, w = x.shape
        y = torch.empty_like(x)
        grid = (n * ch, triton.cdiv(h, 16), triton.cdiv(w, 64))
        depthwise[grid](x, self.weight, self.bias, y, ch, h, w, ROWS=16, COLS=64, num_warps=4)
        return y
