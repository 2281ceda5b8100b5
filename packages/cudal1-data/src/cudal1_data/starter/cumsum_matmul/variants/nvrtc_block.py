import functools

import torch
import torch.nn as nn

SOURCE = r"""
// A block for each row, 1024 elements a pass: four in a thread, then the warp, then the warps before it.
extern "C" __global__ void __launch_bounds__(256) prefix_sums(
    const float* __restrict__ x, float* __restrict__ y, int n, int wide) {
    __shared__ float ends[2][8];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const float* from = x + (long long)blockIdx.x * n;
    float* to = y + (long long)blockIdx.x * n;
    float carry = 0.0f;
    for (int start = 0, turn = 0; start < n; start += 1024, turn ^= 1) {
        const int col = start + 4 * thread;
        __align__(16) float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (wide) {
            if (col < n) *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(from + col);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (col + i < n) v[i] = from[col + i];
        }
#pragma unroll
        for (int i = 1; i < 4; ++i) v[i] += v[i - 1];
        float sum = v[3];
#pragma unroll
        for (int step = 1; step < 32; step <<= 1) {
            const float other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += other;
        }
        // Two sets of ends in turn: one barrier a pass is enough.
        if (lane == 31) ends[turn][warp] = sum;
        __syncthreads();
        float before = carry;
#pragma unroll
        for (int part = 0; part < 8; ++part) {
            if (part < warp) before += ends[turn][part];
            carry += ends[turn][part];
        }
        const float left = __shfl_up_sync(0xffffffffu, sum, 1);
        if (lane > 0) before += left;
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] += before;
        if (wide) {
            if (col < n) *reinterpret_cast<float4*>(to + col) = *reinterpret_cast<float4*>(v);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (col + i < n) to[col + i] = v[i];
        }
    }
}
"""


@functools.cache
def built(source, name):
    return torch.cuda._compile_kernel(source, name)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, n = x.shape
        y = torch.empty_like(x)
        wide = int(n % 4 == 0 and x.data_ptr() % 16 == 0)
        built(SOURCE, "prefix_sums")(grid=(rows, 1, 1), block=(256, 1, 1), args=[x, y, n, wide])
        return y
