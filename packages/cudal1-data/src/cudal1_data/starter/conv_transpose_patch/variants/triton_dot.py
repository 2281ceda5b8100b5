import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def patches(
    x, weight, bias, y, ch, features, h, w, P: tl.constexpr, FEATURES: tl.constexpr, STEPS: tl.constexpr,
    IN: tl.constexpr,
):  # fmt: skip
    # A product of weights (features by channels) and one image (channels by places), stored where the patches lie.
    batch = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    s = tl.program_id(2) * STEPS + tl.arange(0, STEPS)
    inner = tl.arange(0, IN)
    total = tl.zeros([FEATURES, STEPS], tl.float32)
    for start in range(0, ch, IN):
        c = start + inner
        a = tl.load(
            weight + c[None, :] * features + f[:, None], mask=(f < features)[:, None] & (c < ch)[None, :], other=0.0
        )
        b = tl.load(
            x + (batch * ch + c)[:, None] * (h * w) + s[None, :],
            mask=(c < ch)[:, None] & (s < h * w)[None, :],
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision="ieee")
    total += tl.load(bias + f // (P * P), mask=f < features, other=0.0)[:, None]
    row = (
        (batch * (features // (P * P)) + f // (P * P))[:, None] * (h * P)
        + (s // w * P)[None, :]
        + (f // P % P)[:, None]
    )
    col = (s % w * P)[None, :] + (f % P)[:, None]
    tl.store(y + row * (w * P) + col, total, mask=(f < features)[:, None] & (s < h * w)[None, :])


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch, p):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_ch, out_ch, p, stride=p)

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        k = self.up.weight
        o, p = k.shape[1:3]
        features = o * p * p
        y = torch.empty(n, o, h * p, w * p, device=x.device, dtype=x.dtype)
        grid = (n, triton.cdiv(features, 64), triton.cdiv(h * w, 64))
        patches[grid](x, k, self.up.bias, y, c, features, h, w, P=p, FEATURES=64, STEPS=64, IN=32, num_warps=4)
        return y
