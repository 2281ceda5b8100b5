import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *a, const float *b, float *y, long m, long n) {
    for (long i = 0; i < m; i++, a += n, b += n) {
        float d = 0, p = 0, q = 0;
        for (long j = 0; j < n; j++) {
            d += a[j] * b[j];
            p += a[j] * a[j];
            q += b[j] * b[j];
        }
        y[i] = 1.0f - d / fmaxf(sqrtf(p) * sqrtf(q), 1e-8f);
    }
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        y = a.new_empty(a.shape[0])
        lib.run(a.data_ptr(), b.data_ptr(), y.data_ptr(), a.shape[0], a.shape[1])
        return y
