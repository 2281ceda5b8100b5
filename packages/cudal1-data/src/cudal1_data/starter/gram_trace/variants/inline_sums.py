import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""#include <torch/types.h>
#include <c10/cuda/CUDAStream.h>
constexpr int THREADS = 512, WARPS = 16, CHUNK = 65536;

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

__global__ void __launch_bounds__(THREADS) products(
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

void run(torch::Tensor a, torch::Tensor b, torch::Tensor parts) {
    const int batch = parts.size(0), count = parts.size(1), n = a.size(1) * a.size(2);
    products<<<dim3(count, batch), THREADS, 0, c10::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), b.data_ptr<float>(), parts.data_ptr<float>(), n);
}
"""

extension = load_inline(
    name="variant",
    cpp_sources="void run(torch::Tensor a, torch::Tensor b, torch::Tensor parts);",
    cuda_sources=CUDA,
    functions=["run"],
)


class ModelNew(nn.Module):
    def forward(self, a, b):
        parts = torch.empty((a.shape[0], -(-a[0].numel() // 65536)), device=a.device, dtype=torch.float32)
        extension.run(a.contiguous(), b.contiguous(), parts)
        return parts.sum(1)
