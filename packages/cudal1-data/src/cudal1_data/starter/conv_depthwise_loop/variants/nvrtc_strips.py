import functools

import torch
import torch.nn as nn

SOURCE = r"""
// A thread goes down a strip of one column with three rows of three inputs in registers.
extern "C" __global__ void __launch_bounds__(256) depthwise(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, int ch, int h, int w, int across, int down) {
    const int col = blockIdx.x % across * 64 + threadIdx.x;
    const int top = (blockIdx.x / across % down * 4 + threadIdx.y) * 16;
    const int plane = blockIdx.x / across / down, channel = plane % ch;
    if (col >= w || top >= h) return;
    const float* from = x + ((long long)plane * h + top) * w + col;
    float* to = y + ((long long)plane * h + top) * w + col;
    const bool left = col > 0, right = col + 1 < w;
    float k[9], v[3][3];
#pragma unroll
    for (int i = 0; i < 9; ++i) k[i] = weight[channel * 9 + i];
    const float start = bias[channel];
#pragma unroll
    for (int step = -1; step < 17; ++step) {
        const bool inside = top + step >= 0 && top + step < h;
        const int slot = (step + 3) % 3;
        v[slot][0] = inside && left ? from[step * w - 1] : 0.0f;
        v[slot][1] = inside ? from[step * w] : 0.0f;
        v[slot][2] = inside && right ? from[step * w + 1] : 0.0f;
        if (step >= 1) {
            if (top + step - 1 >= h) return;
            float sum = start;
#pragma unroll
            for (int i = 0; i < 3; ++i)
#pragma unroll
                for (int j = 0; j < 3; ++j) sum += k[i * 3 + j] * v[(step + 1 + i) % 3][j];
            to[(step - 1) * w] = sum;
        }
    }
}
"""


@functools.cache
def built(source, name):
    return torch.cuda._compile_kernel(source, name)


class ModelNew(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ch, 1, 3, 3) / 3)
        self.bias = nn.Parameter(torch.randn(ch) / 3)

    def forward(self, x):
        x = x.contiguous()
        n, ch, h, w = x.shape
        y = torch.empty_like(x)
        across, down = (w + 63) // 64, (h + 63) // 64
        args = [x, self.weight, self.bias, y, ch, h, w, across, down]
        built(SOURCE, "depthwise")(grid=(n * ch * down * across, 1, 1), block=(64, 4, 1), args=args)
        return y
