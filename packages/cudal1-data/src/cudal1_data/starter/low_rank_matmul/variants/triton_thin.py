import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def narrow(
    x, u, parts, B, D, R, CHUNK: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Add up CHUNK terms of x @ u."""
    row = (tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B))[:, None]
    r = tl.arange(0, BLOCK_R)[None, :]
    total = tl.zeros((BLOCK_B, BLOCK_R), tl.float32)
    for step in range(0, CHUNK, BLOCK_D):
        d = tl.program_id(1) * CHUNK + step + tl.arange(0, BLOCK_D)
        across, down = d[None, :], d[:, None]
        p = tl.load(x + row.to(tl.int64) * D + across, mask=(row < B) & (across < D), other=0.0)
        q = tl.load(u + down * R + r, mask=(down < D) & (r < R), other=0.0)
        total = tl.dot(p, q, total, input_precision="ieee")
    place = tl.program_id(1).to(tl.int64) * B * R + row * R + r
    tl.store(parts + place, total, mask=(row < B) & (r < R))


@triton.jit
def wide(t, v, y, B, D, R, BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr):
    """Multiply x @ u by v."""
    row = (tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B))[:, None]
    col = (tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    total = tl.zeros((BLOCK_B, BLOCK_D), tl.float32)
    for start in range(0, R, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        across, down = r[None, :], r[:, None]
        p = tl.load(t + row * R + across, mask=(row < B) & (across < R), other=0.0)
        q = tl.load(v + down * D + col, mask=(down < R) & (col < D), other=0.0)
        total = tl.dot(p, q, total, input_precision="ieee")
    tl.store(y + row.to(tl.int64) * D + col, total, mask=(row < B) & (col < D))


class ModelNew(nn.Module):
    def forward(self, x, u, v):
        (b, d), r = x.shape, u.shape[1]
        chunks = triton.cdiv(d, 1024)
        parts = torch.empty((chunks, b, r), device=x.device, dtype=torch.float32)
        sizes = {"BLOCK_B": 64, "BLOCK_D": 32, "BLOCK_R": max(16, triton.next_power_of_2(r))}
        grid = (triton.cdiv(b, 64), chunks)
        narrow[grid](x.contiguous(), u.contiguous(), parts, b, d, r, CHUNK=1024, **sizes, num_warps=8, num_stages=3)
        y = torch.empty((b, v.shape[1]), device=x.device, dtype=torch.float32)
        sizes = {"BLOCK_B": 64, "BLOCK_D": 128, "BLOCK_R": 16}
        grid = (triton.cdiv(v.shape[1], 128), triton.cdiv(b, 64))
        wide[grid](parts.sum(0), v.contiguous(), y, b, v.shape[1], r, **sizes, num_warps=8, num_stages=3)
        return y
