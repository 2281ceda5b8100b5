import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *x, float *y, long b, long t, long c) {
    float lo[c], hi[c];
    for (long i = 0; i < b; i++, y += c) {
        for (long j = 0; j < c; j++) lo[j] = hi[j] = x[j];
        for (long k = 0; k < t; k++, x += c)
            for (long j = 0; j < c; j++) {
                lo[j] = fminf(lo[j], x[j]);
                hi[j] = fmaxf(hi[j], x[j]);
            }
        for (long j = 0; j < c; j++) y[j] = hi[j] - lo[j];
    }
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 3


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        b, t, c = x.shape
        y = x.new_empty(b, c)
        lib.run(x.data_ptr(), y.data_ptr(), b, t, c)
        return y
