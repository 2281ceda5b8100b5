import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

__device__ __forceinline__ float4 load(const float* from, int left, bool wide) {
    if (wide) return left > 0 ? *reinterpret_cast<const float4*>(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return make_float4(
        left > 0 ? from[0] : 0.0f, left > 1 ? from[1] : 0.0f, left > 2 ? from[2] : 0.0f, left > 3 ? from[3] : 0.0f);
}

// A warp for each row, 128 elements a pass; the next ones are on their way while these are summed.
__global__ void __launch_bounds__(256) prefix_sums(
    const float* __restrict__ x, float* __restrict__ y, int rows, int n) {
    const int lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    const bool wide = n % 4 == 0 && reinterpret_cast<unsigned long long>(x) % 16 == 0;
    const float* from = x + (long long)row * n;
    float* to = y + (long long)row * n;
    float carry = 0.0f;
    int col = 4 * lane;
    float4 next = load(from + col, n - col, wide), later = load(from + col + 128, n - col - 128, wide);
    for (int start = 0; start < n; start += 128, col += 128) {
        float4 v = next;
        next = later;
        later = load(from + col + 256, n - col - 256, wide);
        v.y += v.x;
        v.z += v.y;
        v.w += v.z;
        float sum = v.w;
#pragma unroll
        for (int step = 1; step < 32; step <<= 1) {
            const float other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += other;
        }
        float before = __shfl_up_sync(0xffffffffu, sum, 1);
        before = lane > 0 ? before + carry : carry;
        carry += __shfl_sync(0xffffffffu, sum, 31);
        v = make_float4(v.x + before, v.y + before, v.z + before, v.w + before);
        if (wide) {
            if (col < n) *reinterpret_cast<float4*>(to + col) = v;
        } else {
            if (col < n) to[col] = v.x;
            if (col + 1 < n) to[col + 1] = v.y;
            if (col + 2 < n) to[col + 2] = v.z;
            if (col + 3 < n) to[col + 3] = v.w;
        }
    }
}

void run(torch::Tensor x, torch::Tensor y, int64_t rows, int64_t n) {
    prefix_sums<<<dim3((rows + 7) / 8), dim3(256), 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), rows, n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""

extension = load_inline(
    name="cumsum_matmul",
    cpp_sources="void run(torch::Tensor x, torch::Tensor y, int64_t rows, int64_t n);",
    cuda_sources=CUDA,
    functions=["run"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        extension.run(x, y, *x.shape)
        return y
