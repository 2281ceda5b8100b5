import functools

import torch
import torch.nn as nn

SOURCE = r"""#define ROWS 16

// A thread walks down a column: each row's maximum is found once, and the last K of them stay in registers.
extern "C" __global__ void __launch_bounds__(128) pool(
    const float* __restrict__ x, float* __restrict__ y, int height, int width) {
    const int high = height - K + 1, wide = width - K + 1;
    const int first = blockIdx.y * ROWS, col = blockIdx.x * 128 + threadIdx.x;
    if (col >= wide) return;
    const float* in = x + (long long)blockIdx.z * height * width + col;
    float* out = y + (long long)blockIdx.z * high * wide + col;
    float last[K];
#pragma unroll
    for (int i = 0; i < K; ++i) last[i] = 0.0f;
#pragma unroll
    for (int step = 0; step < ROWS + K - 1; ++step) {
        const float* line = in + min(first + step, height - 1) * width;
        float most = line[0];
#pragma unroll
        for (int j = 1; j < K; ++j) most = fmaxf(most, line[j]);
#pragma unroll
        for (int i = 0; i < K - 1; ++i) last[i] = last[i + 1];
        last[K - 1] = most;
#pragma unroll
        for (int i = 0; i < K - 1; ++i) most = fmaxf(most, last[i]);
        const int row = first + step - (K - 1);
        if (step >= K - 1 && row < high) out[row * wide] = most;
    }
}
"""


@functools.cache
def built(source, name):
    return torch.cuda._compile_kernel(source, name)


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        n, c, h, w = x.shape
        high, wide = h - self.k + 1, w - self.k + 1
        y = torch.empty((n, c, high, wide), device=x.device, dtype=torch.float32)
        kernel = built(f"#define K {self.k}\n{SOURCE}", "pool")
        grid = (-(-wide // 128), -(-high // 16), n * c)
        kernel(grid=grid, block=(128, 1, 1), args=[x.contiguous(), y, h, w])
        return y
