import functools

import torch
import torch.nn as nn

SOURCE = r"""#define THREADS 256
#define WARPS 8
#define CHUNK 16384
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float warps[WARPS];
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    float whole = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) whole += warps[warp];
    return whole;
}

extern "C" __global__ void __launch_bounds__(THREADS) products(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ parts, int n) {
    const long long start = (long long)blockIdx.y * n;
    const int first = blockIdx.x * CHUNK, last = min(first + CHUNK, n);
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    if (n % 4 == 0) {
        const float4* left = (const float4*)(a + start);
        const float4* right = (const float4*)(b + start);
#pragma unroll 4
        for (int i = first / 4 + threadIdx.x; i < last / 4; i += THREADS) {
            const float4 x = left[i], y = right[i];
            s0 = fmaf(x.x, y.x, s0);
            s1 = fmaf(x.y, y.y, s1);
            s2 = fmaf(x.z, y.z, s2);
            s3 = fmaf(x.w, y.w, s3);
        }
    } else {
        for (int i = first + threadIdx.x; i < last; i += THREADS) s0 = fmaf(a[start + i], b[start + i], s0);
    }
    const float whole = block_sum((s0 + s1) + (s2 + s3));
    if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = whole;
}

extern "C" __global__ void __launch_bounds__(32) totals(
    const float* __restrict__ parts, float* __restrict__ out, int count) {
    float total = 0.0f;
    for (int i = threadIdx.x; i < count; i += 32) total += parts[blockIdx.x * count + i];
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}
"""


@functools.cache
def built(source, name):
    return torch.cuda._compile_kernel(source, name)


class ModelNew(nn.Module):
    def forward(self, a, b):
        batch, n = a.shape[0], a[0].numel()
        count = -(-n // 16384)
        parts = torch.empty((batch, count), device=a.device, dtype=torch.float32)
        out = torch.empty((batch,), device=a.device, dtype=torch.float32)
        args = [a.contiguous(), b.contiguous(), parts, n]
        built(SOURCE, "products")(grid=(count, batch, 1), block=(256, 1, 1), args=args)
        built(SOURCE, "totals")(grid=(batch, 1, 1), block=(32, 1, 1), args=[parts, out, count])
        return out
