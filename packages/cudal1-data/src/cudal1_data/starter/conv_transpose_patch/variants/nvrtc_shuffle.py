import functools

import torch
import torch.nn as nn

SOURCE = r"""
// A thread brings the P values of one row of a patch together and adds the bias.
struct __align__(P == 4 ? 16 : P == 2 ? 8 : 4) Piece {
    float part[P];
};
extern "C" __global__ void __launch_bounds__(256) shuffle(
    const float* __restrict__ z, const float* __restrict__ bias, float* __restrict__ y, int out, int h, int w,
    int across) {
    const int s = blockIdx.x % across * 256 + threadIdx.x, line = blockIdx.x / across;
    if (s >= h * w) return;
    const int i = line % P, o = line / P % out;
    const long long plane = line / P;
    const float* from = z + (long long)line * P * h * w + s;
    const float plus = bias[o];
    Piece piece;
#pragma unroll
    for (int j = 0; j < P; ++j) piece.part[j] = from[(long long)j * h * w] + plus;
    const long long row = (plane * h + s / w) * P + i;
    reinterpret_cast<Piece*>(y)[row * w + s % w] = piece;
}
"""


@functools.cache
def built(source, name):
    return torch.cuda._compile_kernel(source, name)


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch, p):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_ch, out_ch, p, stride=p)

    def forward(self, x):
        n, c, h, w = x.shape
        k = self.up.weight
        o, p = k.shape[1:3]
        z = torch.bmm(k.view(c, -1).t().expand(n, -1, -1), x.reshape(n, c, h * w))
        y = torch.empty(n, o, h * p, w * p, device=x.device, dtype=x.dtype)
        across = (h * w + 255) // 256
        kernel = built(f"#define P {p}\n{SOURCE}", "shuffle")
        kernel(grid=(n * o * p * across, 1, 1), block=(256, 1, 1), args=[z, self.up.bias, y, o, h, w, across])
        return y
