import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *x, const float *w, float *y, long b, long c, long n) {
    for (long i = 0; i < b * c; i++, x += n, y += n) {
        float u = 0, s = 0;
        for (long j = 0; j < n; j++) u += x[j];
        u /= n;
        for (long j = 0; j < n; j++) s += (x[j] - u) * (x[j] - u);
        s = w[i % c] / sqrtf(s / n + 1e-5f);
        for (long j = 0; j < n; j++) y[j] = (x[j] - u) * s;
    }
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        x, w = x.contiguous(), self.weight
        y = torch.empty_like(x)
        b, c, h, k = x.shape
        lib.run(x.data_ptr(), w.data_ptr(), y.data_ptr(), b, c, h * k)
        return y
