import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""#include <torch/types.h>
#include <c10/cuda/CUDAStream.h>
// A warp for each row; the eight warps of a block find the vector in the same L1 cache.
__global__ void __launch_bounds__(256) matvec(
    const float* __restrict__ matrix, const float* __restrict__ vector, float* __restrict__ out, int rows, int cols) {
    const int lane = threadIdx.x % 32, place = blockIdx.x * 8 + threadIdx.x / 32;
    if (place >= rows) return;
    const float* row = matrix + (long long)place * cols;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    if (cols % 4 == 0) {
#pragma unroll 8
        for (int i = lane; i < cols / 4; i += 32) {
            const float4 x = ((const float4*)row)[i], y = ((const float4*)vector)[i];
            s0 = fmaf(x.x, y.x, s0);
            s1 = fmaf(x.y, y.y, s1);
            s2 = fmaf(x.z, y.z, s2);
            s3 = fmaf(x.w, y.w, s3);
        }
    } else {
        for (int i = lane; i < cols; i += 32) s0 = fmaf(row[i], vector[i], s0);
    }
    float sum = (s0 + s1) + (s2 + s3);
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) out[place] = sum;
}

void run(torch::Tensor matrix, torch::Tensor vector, torch::Tensor out) {
    const int rows = matrix.size(0), cols = matrix.size(1);
    matvec<<<(rows + 7) / 8, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        matrix.data_ptr<float>(), vector.data_ptr<float>(), out.data_ptr<float>(), rows, cols);
}
"""

extension = load_inline(
    name="variant",
    cpp_sources="void run(torch::Tensor matrix, torch::Tensor vector, torch::Tensor out);",
    cuda_sources=CUDA,
    functions=["run"],
)


def product(matrix, vector):
    out = torch.empty((matrix.shape[0],), device=matrix.device, dtype=torch.float32)
    extension.run(matrix, vector, out)
    return out


class ModelNew(nn.Module):
    def forward(self, a, b, v):
        return product(a.contiguous(), product(b.contiguous(), v.contiguous()))
