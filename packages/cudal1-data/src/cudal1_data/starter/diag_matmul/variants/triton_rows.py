import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale_rows(a, b, y, n, m, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = (row < n)[:, None] & (col < m)[None, :]
    place = row.to(tl.int64)[:, None] * m + col[None, :]
    factor = tl.load(a + row, mask=row < n, other=0.0)
    v = tl.load(b + place, mask=inside, other=0.0)
    tl.store(y + place, factor[:, None] * v, mask=inside)


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        n, m = b.shape
        y = torch.empty_like(b)
        scale_rows[(triton.cdiv(n, 4), triton.cdiv(m, 1024))](a, b, y, n, m, ROWS=4, COLS=1024, num_warps=8)
        return y
