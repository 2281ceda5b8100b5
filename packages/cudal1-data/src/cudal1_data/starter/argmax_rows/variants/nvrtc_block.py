import functools

import torch
import torch.nn as nn

SOURCE = r"""
// NaN comes before all else, then the larger value, then the smaller place.
__device__ __forceinline__ bool before(float v, int i, float w, int j) {
    const bool lost = v != v, other = w != w;
    if (lost != other) return lost;
    return lost || v == w ? i < j : v > w;
}
__device__ __forceinline__ void see(float v, int i, float& best, int& at) {
    if (!(v <= best) && best == best) {
        best = v;
        at = i;
    }
}
__device__ __forceinline__ void join(float& best, int& at) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        const float value = __shfl_xor_sync(0xffffffffu, best, step);
        const int place = __shfl_xor_sync(0xffffffffu, at, step);
        if (before(value, place, best, at)) {
            best = value;
            at = place;
        }
    }
}
extern "C" __global__ void __launch_bounds__(256) argmax(
    const float* __restrict__ x, long long* __restrict__ y, int n, int wide) {
    __shared__ float values[8];
    __shared__ int places[8];
    const int thread = threadIdx.x;
    const float* row = x + (long long)blockIdx.x * n;
    float best = __int_as_float(0xff800000);
    int at = 0x7fffffff;
    if (wide) {
        if (4 * thread < n) at = 4 * thread;
#pragma unroll 4
        for (int col = 4 * thread; col < n; col += 1024) {
            const float4 v = *reinterpret_cast<const float4*>(row + col);
            see(v.x, col, best, at);
            see(v.y, col + 1, best, at);
            see(v.z, col + 2, best, at);
            see(v.w, col + 3, best, at);
        }
    } else {
        if (thread < n) at = thread;
#pragma unroll 4
        for (int col = thread; col < n; col += 256) see(row[col], col, best, at);
    }
    join(best, at);
    if (thread % 32 == 0) {
        values[thread / 32] = best;
        places[thread / 32] = at;
    }
    __syncthreads();
    if (thread >= 32) return;
    best = values[thread % 8];
    at = places[thread % 8];
    join(best, at);
    if (thread == 0) y[blockIdx.x] = at;
}
"""


@functools.cache
def built(source, name):
    return torch.cuda._compile_kernel(source, name)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        b, n = x.shape
        y = torch.empty(b, device=x.device, dtype=torch.int64)
        wide = int(n % 4 == 0 and x.data_ptr() % 16 == 0)
        built(SOURCE, "argmax")(grid=(b, 1, 1), block=(256, 1, 1), args=[x, y, n, wide])
        return y
