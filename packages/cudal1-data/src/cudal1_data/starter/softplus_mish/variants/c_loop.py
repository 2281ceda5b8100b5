import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *x, float *y, long n) {
    for (long i = 0; i < n; i++) {
        float v = x[i], a = fabsf(v);
        float e = expf(-a);
        float p = v > 0 ? 1.0f + 2.0f * e : e * (e + 2.0f);
        float q = v > 0 ? p + 2.0f * e * e : p + 2.0f;
        y[i] = fmaxf(v, 0.0f) + log1pf(e) + v * p / q;
    }
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long]


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.run(x.data_ptr(), y.data_ptr(), x.numel())
        return y
