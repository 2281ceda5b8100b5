import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *x, float *y, long b, long n) {
    for (long i = 0; i < b; i++, x += n) {
        float m = x[0], s = 0;
        for (long j = 0; j < n; j++) m = fmaxf(m, x[j]);
        for (long j = 0; j < n; j++) s += expf(x[j] - m);
        y[i] = m + logf(s);
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
        y = x.new_empty(x.shape[0], 1)
        lib.run(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
