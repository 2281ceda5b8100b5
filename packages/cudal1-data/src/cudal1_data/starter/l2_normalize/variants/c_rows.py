import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *x, float *y, long b, long n) {
    for (long i = 0; i < b; i++, x += n, y += n) {
        float s = 0;
        for (long j = 0; j < n; j++) s += x[j] * x[j];
        s = 1.0f / fmaxf(sqrtf(s), 1e-12f);
        for (long j = 0; j < n; j++) y[j] = x[j] * s;
    }
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 2


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.run(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
