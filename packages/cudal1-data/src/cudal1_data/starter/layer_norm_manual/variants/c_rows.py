import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *x, const float *w, const float *b, float *y, long m, long n) {
    for (long i = 0; i < m; i++, x += n, y += n) {
        float u = 0, s = 0;
        for (long j = 0; j < n; j++) u += x[j];
        u /= n;
        for (long j = 0; j < n; j++) s += (x[j] - u) * (x[j] - u);
        s = 1.0f / sqrtf(s / n + 1e-5f);
        for (long j = 0; j < n; j++) y[j] = (x[j] - u) * s * w[j] + b[j];
    }
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 2


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        x, w, b = x.contiguous(), self.weight, self.bias
        y = torch.empty_like(x)
        n = x.shape[-1]
        lib.run(x.data_ptr(), w.data_ptr(), b.data_ptr(), y.data_ptr(), x.numel() // n, n)
        return y
