import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
void run(const float *x, const float *a, float *y, long n, long t, long d) {
    for (long i = 0; i < n * t; i++, x += d, y += d)
        for (long j = 0; j < d; j++)
            y[j] = i % t ? a[j] * y[j - d] + x[j] : x[j];
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        x, a = x.contiguous(), torch.sigmoid(self.decay)
        y = torch.empty_like(x)
        lib.run(x.data_ptr(), a.data_ptr(), y.data_ptr(), *x.shape)
        return y
