import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

// A block scales a row: its factor is read once, and what is written is not kept in the cache.
__global__ void __launch_bounds__(256) scale_rows(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ y, int m) {
    const long long row = blockIdx.x;
    const float factor = a[row];
    const float* from = b + row * m;
    float* to = y + row * m;
    if (m % 4 == 0 && reinterpret_cast<unsigned long long>(b) % 16 == 0) {
        const float4* from4 = reinterpret_cast<const float4*>(from);
        float4* to4 = reinterpret_cast<float4*>(to);
#pragma unroll 4
        for (int i = threadIdx.x; i < m / 4; i += 256) {
            const float4 v = __ldcs(from4 + i);
            __stcs(to4 + i, make_float4(factor * v.x, factor * v.y, factor * v.z, factor * v.w));
        }
        return;
    }
    for (int i = threadIdx.x; i < m; i += 256) to[i] = factor * from[i];
}

void run(torch::Tensor a, torch::Tensor b, torch::Tensor y, int64_t n, int64_t m) {
    scale_rows<<<dim3(n), dim3(256), 0, c10::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), m);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""

extension = load_inline(
    name="diag_matmul",
    cpp_sources="void run(torch::Tensor a, torch::Tensor b, torch::Tensor y, int64_t n, int64_t m);",
    cuda_sources=CUDA,
    functions=["run"],
)


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        y = torch.empty_like(b)
        extension.run(a, b, y, *b.shape)
        return y
