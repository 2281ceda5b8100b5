import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
constexpr int BAND = 512;

// One pass writes both lower triangles, and zeros into the part of y that no band of rows covers.
__global__ void __launch_bounds__(256) triangles(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ lower_a, float* __restrict__ lower_b,
    float* __restrict__ y, int n) {
    const int row = blockIdx.y, col = blockIdx.x * 256 + threadIdx.x;
    const long long place = (long long)row * n + col;
    if (col >= n) return;
    lower_a[place] = col <= row ? a[place] : 0.0f;
    lower_b[place] = col <= row ? b[place] : 0.0f;
    if (col >= (row / BAND + 1) * BAND) y[place] = 0.0f;
}

torch::Tensor bands(torch::Tensor a, torch::Tensor b) {
    const int n = a.size(0);
    auto lower_a = torch::empty({n, n}, a.options()), lower_b = torch::empty({n, n}, a.options());
    auto y = torch::empty({n, n}, a.options());
    triangles<<<dim3((n + 255) / 256, n), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), b.data_ptr<float>(), lower_a.data_ptr<float>(), lower_b.data_ptr<float>(),
        y.data_ptr<float>(), n);
    // A band of rows has no terms behind its last row, and no columns either.
    for (int64_t top = 0; top < n; top += BAND) {
        const int64_t end = std::min<int64_t>(top + BAND, n);
        auto out = y.slice(0, top, end).slice(1, 0, end);
        at::mm_out(out, lower_a.slice(0, top, end).slice(1, 0, end), lower_b.slice(0, 0, end).slice(1, 0, end));
    }
    return y;
}
"""

extension = load_inline(
    name="variant",
    cpp_sources="torch::Tensor bands(torch::Tensor a, torch::Tensor b);",
    cuda_sources=CUDA,
    functions=["bands"],
)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return extension.bands(a.contiguous(), b.contiguous())
