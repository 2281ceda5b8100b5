import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *x, const float *w, float *y, long b, long n) {
    for (long i = 0; i < b; i++, x += n, y += n) {
        float s = 0;
        for (long j = 0; j < n; j++) s += x[j] * x[j];
        s = 1.0f / sqrtf(s / n + 1e-5f);
        for (long j = 0; j < n; j++) y[j] = x[j] * s * w[j];
    }
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        x, w = x.contiguous(), self.weight
        y = torch.empty_like(x)
        n = x.shape[-1]
        lib.run(x.data_ptr(), w.data_ptr(), y.data_ptr(), x.numel() // n, n)
        return y
