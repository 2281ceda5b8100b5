import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""#include <torch/types.h>
#include <c10/cuda/CUDAStream.h>
constexpr int WARPS = 8, SHARE = 32;

// A block computes one row of a times x as a matrix, and SHARE elements of this row times b transposed.
__global__ void __launch_bounds__(32 * WARPS) product(
    const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ x, float* __restrict__ out,
    int K, int P, int Q) {
    extern __shared__ float t[];
    __shared__ float parts[WARPS][32];
    const int lane = threadIdx.x, warp = threadIdx.y, row = blockIdx.x;
    for (int first = 0; first < Q; first += 32) {
        const int q = first + lane;
        float sum = 0.0f;
        if (q < Q) {
#pragma unroll 8
            for (int k = warp; k < K; k += WARPS) sum = fmaf(a[row * K + k], x[k * Q + q], sum);
        }
        parts[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && q < Q) {
            float whole = 0.0f;
#pragma unroll
            for (int i = 0; i < WARPS; ++i) whole += parts[i][lane];
            t[q] = whole;
        }
        __syncthreads();
    }
    for (int p = blockIdx.y * SHARE + warp; p < min(P, (int)(blockIdx.y + 1) * SHARE); p += WARPS) {
        float sum = 0.0f;
#pragma unroll 4
        for (int q = lane; q < Q; q += 32) sum = fmaf(t[q], b[p * Q + q], sum);
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) out[row * P + p] = sum;
    }
}

void run(torch::Tensor a, torch::Tensor b, torch::Tensor x, torch::Tensor out) {
    const int N = a.size(0), K = a.size(1), P = b.size(0), Q = b.size(1);
    const dim3 grid(N, (P + SHARE - 1) / SHARE), block(32, WARPS);
    product<<<grid, block, Q * sizeof(float), c10::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(), b.data_ptr<float>(), x.data_ptr<float>(), out.data_ptr<float>(), K, P, Q);
}
"""

extension = load_inline(
    name="variant",
    cpp_sources="void run(torch::Tensor a, torch::Tensor b, torch::Tensor x, torch::Tensor out);",
    cuda_sources=CUDA,
    functions=["run"],
)


class ModelNew(nn.Module):
    def forward(self, a, b, x):
        out = torch.empty((a.shape[0] * b.shape[0],), device=a.device, dtype=torch.float32)
        extension.run(a.contiguous(), b.contiguous(), x.contiguous(), out)
        return out
