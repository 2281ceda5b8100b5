import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

// A block brings 34 x 34 inputs into shared memory and makes 32 x 32 outputs of them.
__global__ void __launch_bounds__(256) depthwise(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    float* __restrict__ y, int ch, int h, int w, int across, int down) {
    __shared__ float tile[34][34];
    const int left = blockIdx.x % across * 32, top = blockIdx.x / across % down * 32;
    const int plane = blockIdx.x / across / down, channel = plane % ch;
    const long long start = (long long)plane * h * w;
    for (int place = threadIdx.y * 32 + threadIdx.x; place < 34 * 34; place += 256) {
        const int row = top + place / 34 - 1, col = left + place % 34 - 1;
        const bool inside = row >= 0 && row < h && col >= 0 && col < w;
        tile[place / 34][place % 34] = inside ? x[start + (long long)row * w + col] : 0.0f;
    }
    float k[9];
#pragma unroll
    for (int i = 0; i < 9; ++i) k[i] = weight[channel * 9 + i];
    const float first = bias[channel];
    __syncthreads();
    const int col = left + threadIdx.x;
    if (col >= w) return;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int row = part * 8 + threadIdx.y;
        float sum = first;
#pragma unroll
        for (int i = 0; i < 9; ++i) sum += k[i] * tile[row + i / 3][threadIdx.x + i % 3];
        if (top + row < h) y[start + (long long)(top + row) * w + col] = sum;
    }
}

void run(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor y, int64_t n, int64_t ch,
         int64_t h, int64_t w) {
    const int64_t across = (w + 31) / 32, down = (h + 31) / 32;
    depthwise<<<dim3(n * ch * down * across), dim3(32, 8), 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), ch, h, w, across,
        down);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""

CPP = r"""
void run(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor y, int64_t n, int64_t ch,
         int64_t h, int64_t w);
"""

extension = load_inline(name="conv_depthwise_loop", cpp_sources=CPP, cuda_sources=CUDA, functions=["run"])


class ModelNew(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ch, 1, 3, 3) / 3)
        self.bias = nn.Parameter(torch.randn(ch) / 3)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        extension.run(x, self.weight, self.bias, y, *x.shape)
        return y
