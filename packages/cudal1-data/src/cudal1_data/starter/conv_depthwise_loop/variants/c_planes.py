import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
void run(const float *x, const float *k, const float *b, float *y, long n, long c, long h, long w) {
    for (long i = 0; i < n * c * h; i++, y += w) {
        for (long t = 0; t < w; t++) y[t] = b[i / h % c];
        for (long j = 0; j < 3; j++) {
            const float *g = k + i / h % c * 9 + j * 3, *s = x + (i + j - 1) * w;
            if (i % h + j < 1 || i % h + j > h) continue;
            for (long t = 1; t < w - 1; t++) y[t] += g[0] * s[t - 1] + g[1] * s[t] + g[2] * s[t + 1];
            y[0] += g[1] * s[0] + g[2] * s[1];
            y[w - 1] += g[0] * s[w - 2] + g[1] * s[w - 1];
        }
    }
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 4


class ModelNew(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ch, 1, 3, 3) / 3)
        self.bias = nn.Parameter(torch.randn(ch) / 3)

    def forward(self, x):
        x, k, b = x.contiguous(), self.weight, self.bias
        y = torch.empty_like(x)
        lib.run(x.data_ptr(), k.data_ptr(), b.data_ptr(), y.data_ptr(), *x.shape)
        return y
