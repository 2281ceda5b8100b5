import functools

import torch
import torch.nn as nn

SOURCE = r"""
extern "C" __global__ void __launch_bounds__(256) scale_rows(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ y, int m, int wide) {
    const long long row = blockIdx.x;
    const float factor = a[row];
    const float* from = b + row * m;
    float* to = y + row * m;
    if (wide) {
        const int col = blockIdx.y * 1024 + threadIdx.x * 4;
        if (col >= m) return;
        float4 v = *reinterpret_cast<const float4*>(from + col);
        v.x *= factor;
        v.y *= factor;
        v.z *= factor;
        v.w *= factor;
        *reinterpret_cast<float4*>(to + col) = v;
        return;
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int col = blockIdx.y * 1024 + part * 256 + threadIdx.x;
        if (col < m) to[col] = factor * from[col];
    }
}
"""


@functools.cache
def built(source, name):
    return torch.cuda._compile_kernel(source, name)


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        n, m = b.shape
        y = torch.empty_like(b)
        wide = int(m % 4 == 0 and b.data_ptr() % 16 == 0)
        built(SOURCE, "scale_rows")(grid=(n, (m + 1023) // 1024, 1), block=(256, 1, 1), args=[a, b, y, m, wide])
        return y
