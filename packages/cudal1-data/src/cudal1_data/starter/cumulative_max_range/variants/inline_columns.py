import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

// A thread for each column of each series; sixteen loads are under way at once. A NaN stays.
__global__ void __launch_bounds__(128) extremes(
    const float* __restrict__ x, float* __restrict__ y, long long columns, int t, int c) {
    const long long column = (long long)blockIdx.x * 128 + threadIdx.x;
    if (column >= columns) return;
    const float* from = x + column / c * t * c + column % c;
    float high = -INFINITY, low = INFINITY;
#pragma unroll 16
    for (int step = 0; step < t; ++step) {
        const float v = __ldcs(from + (long long)step * c);
        high = v > high || v != v ? v : high;
        low = v < low || v != v ? v : low;
    }
    y[column] = high - low;
}

void run(torch::Tensor x, torch::Tensor y, int64_t b, int64_t t, int64_t c) {
    extremes<<<dim3((b * c + 127) / 128), dim3(128), 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), b * c, t, c);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""

extension = load_inline(
    name="cumulative_max_range",
    cpp_sources="void run(torch::Tensor x, torch::Tensor y, int64_t b, int64_t t, int64_t c);",
    cuda_sources=CUDA,
    functions=["run"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        b, t, c = x.shape
        y = torch.empty(b, c, device=x.device, dtype=x.dtype)
        extension.run(x, y, b, t, c)
        return y
