import functools

import torch
import torch.nn as nn

SOURCE = r"""
// A thread takes every eighth step of a column; the eight join in shared memory. A NaN stays.
__device__ __forceinline__ float higher(float a, float b) { return b > a || b != b ? b : a; }
__device__ __forceinline__ float lower(float a, float b) { return b < a || b != b ? b : a; }
extern "C" __global__ void __launch_bounds__(256) extremes(
    const float* __restrict__ x, float* __restrict__ y, int t, int c) {
    __shared__ float highs[8][32], lows[8][32];
    const int col = blockIdx.y * 32 + threadIdx.x;
    const long long series = blockIdx.x;
    const float* from = x + series * t * c + col;
    float high = __int_as_float(0xff800000), low = __int_as_float(0x7f800000);
    if (col < c) {
#pragma unroll 8
        for (int step = threadIdx.y; step < t; step += 8) {
            const float v = from[(long long)step * c];
            high = higher(high, v);
            low = lower(low, v);
        }
    }
    highs[threadIdx.y][threadIdx.x] = high;
    lows[threadIdx.y][threadIdx.x] = low;
    __syncthreads();
    if (threadIdx.y > 0 || col >= c) return;
#pragma unroll
    for (int slice = 1; slice < 8; ++slice) {
        high = higher(high, highs[slice][threadIdx.x]);
        low = lower(low, lows[slice][threadIdx.x]);
    }
    y[series * c + col] = high - low;
}
"""


@functools.cache
def built(source, name):
    return torch.cuda._compile_kernel(source, name)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        b, t, c = x.shape
        y = torch.empty(b, c, device=x.device, dtype=x.dtype)
        built(SOURCE, "extremes")(grid=(b, (c + 31) // 32, 1), block=(32, 8, 1), args=[x, y, t, c])
        return y
