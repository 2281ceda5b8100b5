import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

__device__ __forceinline__ void see(float v, int i, float& best, int& at) {
    if (!(v <= best) && best == best) {  // larger, or the first NaN
        best = v;
        at = i;
    }
}

// A warp for each row: no barrier, no shared memory.
__global__ void __launch_bounds__(256) argmax(const float* __restrict__ x, int64_t* __restrict__ y, int rows, int n) {
    const int lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    const float* from = x + (long long)row * n;
    float best = -INFINITY;
    int at = lane < n ? lane : 0x7fffffff;
    if (n % 4 == 0 && reinterpret_cast<unsigned long long>(x) % 16 == 0) {
        at = 4 * lane < n ? 4 * lane : 0x7fffffff;
#pragma unroll 8
        for (int col = 4 * lane; col < n; col += 128) {
            const float4 v = __ldcs(reinterpret_cast<const float4*>(from + col));
            see(v.x, col, best, at);
            see(v.y, col + 1, best, at);
            see(v.z, col + 2, best, at);
            see(v.w, col + 3, best, at);
        }
    } else {
#pragma unroll 8
        for (int col = lane; col < n; col += 32) see(from[col], col, best, at);
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        const float value = __shfl_xor_sync(0xffffffffu, best, step);
        const int place = __shfl_xor_sync(0xffffffffu, at, step);
        const bool lost = value != value, mine = best != best;
        const bool same = lost == mine && (lost || value == best);
        if (same ? place < at : lost || (!mine && value > best)) {
            best = value;
            at = place;
        }
    }
    if (lane == 0) y[row] = at;
}

void run(torch::Tensor x, torch::Tensor y, int64_t rows, int64_t n) {
    argmax<<<dim3((rows + 7) / 8), dim3(256), 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<int64_t>(), rows, n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""

extension = load_inline(
    name="argmax_rows",
    cpp_sources="void run(torch::Tensor x, torch::Tensor y, int64_t rows, int64_t n);",
    cuda_sources=CUDA,
    functions=["run"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], device=x.device, dtype=torch.int64)
        extension.run(x, y, *x.shape)
        return y
