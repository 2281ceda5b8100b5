import functools

import torch
import torch.nn as nn

SOURCE = r"""extern "C" __global__ void __launch_bounds__(128) recurrence(
    const float* __restrict__ x, const float* __restrict__ decay, float* __restrict__ y, int steps, int dim) {
    const int d = blockIdx.x * 128 + threadIdx.x;
    if (d >= dim) return;
    const float a = 1.0f / (1.0f + expf(-decay[d]));
    long long place = (long long)blockIdx.y * steps * dim + d;
    float h = 0.0f;
    int t = 0;
    for (; t + 16 <= steps; t += 16, place += 16ll * dim) {
        float value[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) value[i] = x[place + (long long)i * dim];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            h = fmaf(a, h, value[i]);
            y[place + (long long)i * dim] = h;
        }
    }
    for (; t < steps; ++t, place += dim) {
        h = fmaf(a, h, x[place]);
        y[place] = h;
    }
}
"""


@functools.cache
def built(source, name):
    return torch.cuda._compile_kernel(source, name)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        batch, steps, dim = x.shape
        y = torch.empty((batch, steps, dim), device=x.device, dtype=torch.float32)
        args = [x.contiguous(), self.decay, y, steps, dim]
        built(SOURCE, "recurrence")(grid=(-(-dim // 128), batch, 1), block=(128, 1, 1), args=args)
        return y
