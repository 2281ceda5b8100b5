import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""#include <torch/types.h>
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

void run(torch::Tensor a, torch::Tensor b, torch::Tensor lower_a, torch::Tensor lower_b, torch::Tensor y) {
    const int n = a.size(0);
    triangles<<<dim3((n + 255) / 256, n), 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), b.data_ptr<float>(), lower_a.data_ptr<float>(), lower_b.data_ptr<float>(),
        y.data_ptr<float>(), n);
}
"""

extension = load_inline(
    name="variant",
    cpp_sources="""
    void run(torch::Tensor a, torch::Tensor b, torch::Tensor lower_a, torch::Tensor lower_b, torch::Tensor y);
    """,
    cuda_sources=CUDA,
    functions=["run"],
)


class ModelNew(nn.Module):
    def forward(self, a, b):
        n = a.shape[0]
        p, q, y = (torch.empty((n, n), device=a.device, dtype=torch.float32) for _ in range(3))
        extension.run(a.contiguous(), b.contiguous(), p, q, y)
        # A band of rows has no terms behind its last row, and no columns either.
        for top in range(0, n, 512):
            end = min(top + 512, n)
            torch.mm(p[top:end, :end], q[:end, :end], out=y[top:end, :end])
        return y
