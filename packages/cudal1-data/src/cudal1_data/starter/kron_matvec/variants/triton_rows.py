import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def product(a, b, x, out, K, P, Q, BLOCK_K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_Q: tl.constexpr):
    row = tl.program_id(0)
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    total = tl.zeros((BLOCK_P, BLOCK_Q), tl.float32)
    for first in range(0, Q, BLOCK_Q):
        q = first + tl.arange(0, BLOCK_Q)
        within = q < Q
        # One row of a times x as a matrix: BLOCK_Q elements of it.
        parts = tl.zeros((BLOCK_K, BLOCK_Q), tl.float32)
        for start in range(0, K, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            left = tl.load(a + row * K + k, mask=k < K, other=0.0)
            inside = (k < K)[:, None] & within[None, :]
            parts += left[:, None] * tl.load(x + k[:, None] * Q + q[None, :], mask=inside, other=0.0)
        t = tl.sum(parts, 0)
        inside = (p < P)[:, None] & within[None, :]
        total += t[None, :] * tl.load(b + p[:, None] * Q + q[None, :], mask=inside, other=0.0)
    tl.store(out + row * P + p, tl.sum(total, 1), mask=p < P)


class ModelNew(nn.Module):
    def forward(self, a, b, x):
        (n, k), (p, q) = a.shape, b.shape
        out = torch.empty((n * p,), device=a.device, dtype=torch.float32)
        sizes = {"BLOCK_K": 32, "BLOCK_P": 64, "BLOCK_Q": 64}
        args = (a.contiguous(), b.contiguous(), x.contiguous(), out, k, p, q)
        product[(n, triton.cdiv(p, 64))](*args, **sizes, num_warps=4)
        return out
