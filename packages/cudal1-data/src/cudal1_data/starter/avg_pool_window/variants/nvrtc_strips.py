import functools

import torch
import torch.nn as nn

SOURCE = r"""
// A thread goes down a strip of one column; the sums of the last K rows stay in registers. Blocks of one plane follow
// each other, so that rows shared by strips are found in the L2 cache.
extern "C" __global__ void __launch_bounds__(256) window_means(
    const float* __restrict__ x, float* __restrict__ y, int h, int w, int across, int down) {
    const int height = h - K + 1, width = w - K + 1;
    const int col = blockIdx.x % across * 64 + threadIdx.x;
    const int top = (blockIdx.x / across % down * 4 + threadIdx.y) * ROWS;
    const long long plane = blockIdx.x / across / down;
    if (col >= width || top >= height) return;
    const float* from = x + (plane * h + top) * w + col;
    float* to = y + (plane * height + top) * width + col;
    float sums[K];
#pragma unroll
    for (int step = 0; step < ROWS + K - 1; ++step) {
        if (top + step >= h) return;
        float sum = from[step * w];
#pragma unroll
        for (int j = 1; j < K; ++j) sum += from[step * w + j];
        sums[step % K] = sum;
        if (step >= K - 1) {
            float total = sums[0];
#pragma unroll
            for (int i = 1; i < K; ++i) total += sums[i];
            to[(step - K + 1) * width] = total * (1.0f / (K * K));
        }
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
        x = x.contiguous()
        n, c, h, w = x.shape
        k, rows = self.k, 16
        height, width = h - k + 1, w - k + 1
        y = torch.empty(n, c, height, width, device=x.device, dtype=x.dtype)
        across, down = (width + 63) // 64, (height + 4 * rows - 1) // (4 * rows)
        kernel = built(f"#define K {k}\n#define ROWS {rows}\n{SOURCE}", "window_means")
        kernel(grid=(n * c * down * across, 1, 1), block=(64, 4, 1), args=[x, y, h, w, across, down])
        return y
