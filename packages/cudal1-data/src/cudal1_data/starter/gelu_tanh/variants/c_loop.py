import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *x, float *y, long n) {
    for (long i = 0; i < n; i++) {
        float v = x[i];
        float u = v * (1.5957691216f + 0.0713548162726f * v * v);
        y[i] = v / (1.0f + expf(fminf(-u, 80.0f)));
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
