import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""#include <torch/types.h>
#include <c10/cuda/CUDAStream.h>
constexpr int CHANNELS = 32, CHUNKS = 16, STEPS = 16;

// A thread computes STEPS steps as if the state before them were zero; then the states at the chunks' ends are
// joined, and each step gets its share of the state before its chunk.
__global__ void __launch_bounds__(CHANNELS * CHUNKS, 2) recurrence(
    const float* __restrict__ x, const float* __restrict__ decay, float* __restrict__ y, int steps, int dim) {
    __shared__ float ends[CHUNKS][CHANNELS];
    const int lane = threadIdx.x, chunk = threadIdx.y, d = blockIdx.x * CHANNELS + lane;
    const bool inside = d < dim;
    const float a = inside ? 1.0f / (1.0f + expf(-decay[d])) : 0.0f;
    float power = a;
#pragma unroll
    for (int i = 1; i < STEPS; i *= 2) power *= power;
    const long long base = (long long)blockIdx.y * steps * dim + d;
    float before = 0.0f;
    for (int start = 0; start < steps; start += CHUNKS * STEPS) {
        const int first = start + chunk * STEPS;
        float value[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; ++i)
            value[i] = inside && first + i < steps ? x[base + (long long)(first + i) * dim] : 0.0f;
#pragma unroll
        for (int i = 1; i < STEPS; ++i) value[i] = fmaf(a, value[i - 1], value[i]);
        ends[chunk][lane] = value[STEPS - 1];
        __syncthreads();
        float state = before, mine = before;
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) {
            if (i == chunk) mine = state;
            state = fmaf(power, state, ends[i][lane]);
        }
        before = state;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            mine *= a;
            if (inside && first + i < steps) y[base + (long long)(first + i) * dim] = value[i] + mine;
        }
    }
}

void run(torch::Tensor x, torch::Tensor decay, torch::Tensor y) {
    const int batch = x.size(0), steps = x.size(1), dim = x.size(2);
    const dim3 grid((dim + CHANNELS - 1) / CHANNELS, batch), block(CHANNELS, CHUNKS);
    recurrence<<<grid, block, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), decay.data_ptr<float>(), y.data_ptr<float>(), steps, dim);
}
"""

extension = load_inline(
    name="variant",
    cpp_sources="void run(torch::Tensor x, torch::Tensor decay, torch::Tensor y);",
    cuda_sources=CUDA,
    functions=["run"],
)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        y = torch.empty(x.shape, device=x.device, dtype=torch.float32)
        extension.run(x.contiguous(), self.decay, y)
        return y
