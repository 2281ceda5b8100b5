import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""#include <torch/types.h>
#include <c10/cuda/CUDAStream.h>
constexpr int COLS = 32, ROWS = 32, GROUPS = 8;

// Maxima along the rows of a tile go to shared memory, maxima down its columns come from there.
__global__ void __launch_bounds__(COLS * GROUPS) pool(
    const float* __restrict__ x, float* __restrict__ y, int height, int width, int k) {
    extern __shared__ float across[];
    const int high = height - k + 1, wide = width - k + 1, lane = threadIdx.x;
    const int first = blockIdx.y * ROWS, col = blockIdx.x * COLS + lane;
    const float* in = x + (long long)blockIdx.z * height * width;
    float* out = y + (long long)blockIdx.z * high * wide;
    for (int i = threadIdx.y; i < ROWS + k - 1; i += GROUPS) {
        const int row = first + i;
        if (row < height && col < wide) {
            const float* line = in + row * width + col;
            float most = line[0];
            for (int j = 1; j < k; ++j) most = fmaxf(most, line[j]);
            across[i * COLS + lane] = most;
        }
    }
    __syncthreads();
    for (int i = threadIdx.y; i < ROWS; i += GROUPS) {
        const int row = first + i;
        if (row < high && col < wide) {
            float most = across[i * COLS + lane];
            for (int j = 1; j < k; ++j) most = fmaxf(most, across[(i + j) * COLS + lane]);
            out[row * wide + col] = most;
        }
    }
}

void run(torch::Tensor x, torch::Tensor y, int64_t k) {
    const int planes = x.size(0) * x.size(1), height = x.size(2), width = x.size(3);
    const int high = height - k + 1, wide = width - k + 1;
    const dim3 grid((wide + COLS - 1) / COLS, (high + ROWS - 1) / ROWS, planes), block(COLS, GROUPS);
    const size_t shared = (ROWS + k - 1) * COLS * sizeof(float);
    pool<<<grid, block, shared, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), height, width, k);
}
"""

extension = load_inline(
    name="variant",
    cpp_sources="void run(torch::Tensor x, torch::Tensor y, int64_t k);",
    cuda_sources=CUDA,
    functions=["run"],
)


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        n, c, h, w = x.shape
        y = torch.empty((n, c, h - self.k + 1, w - self.k + 1), device=x.device, dtype=torch.float32)
        extension.run(x.contiguous(), y, self.k)
        return y
