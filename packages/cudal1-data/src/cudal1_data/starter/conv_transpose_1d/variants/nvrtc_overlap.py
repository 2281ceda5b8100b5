import functools

import torch
import torch.nn as nn

SOURCE = r"""
// Output 2 s + r is tap r on input s, tap r + 2 on input s - 1, and the bias. A thread writes both of a pair.
extern "C" __global__ void __launch_bounds__(256) overlap(
    const float* __restrict__ taps, const float* __restrict__ bias, float* __restrict__ y, int out, int t, int across) {
    const int s = blockIdx.x % across * 256 + threadIdx.x, row = blockIdx.x / across;
    if (s > t) return;
    const int batch = row / out, o = row % out;
    const long long tap = (long long)out * t;
    const float* from = taps + batch * 4 * tap + (long long)o * t;
    float2 pair = make_float2(bias[o], bias[o]);
    if (s < t) {
        pair.x += from[s];
        pair.y += from[tap + s];
    }
    if (s > 0) {
        pair.x += from[2 * tap + s - 1];
        pair.y += from[3 * tap + s - 1];
    }
    *reinterpret_cast<float2*>(y + (long long)row * (2 * t + 2) + 2 * s) = pair;
}
"""


@functools.cache
def built(source, name):
    return torch.cuda._compile_kernel(source, name)


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(in_ch, out_ch, 4) / in_ch**0.5)
        self.bias = nn.Parameter(torch.randn(out_ch) / 3)

    def forward(self, x):
        n, c, t = x.shape
        o = self.weight.shape[1]
        w = self.weight.permute(2, 1, 0).reshape(4 * o, c)
        taps = torch.bmm(w.expand(n, -1, -1), x)
        y = torch.empty(n, o, 2 * t + 2, device=x.device, dtype=x.dtype)
        across = (t + 256) // 256
        args = [taps, self.bias, y, o, t, across]
        built(SOURCE, "overlap")(grid=(n * o * across, 1, 1), block=(256, 1, 1), args=args)
        return y
