import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *x, long *y, long b, long n) {
    for (long i = 0; i < b; i++, x += n) {
        float m = x[0];
        long k = 0;
        for (long j = 0; j < n; j += 128) {
            float p = x[j];
            long e = j + 128 < n ? j + 128 : n;
            for (long l = j; l < e; l++) p = fmaxf(p, x[l]);
            if (p > m) m = p, k = j;
        }
        while (k < n - 1 && x[k] != m) k++;
        y[i] = k;
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
        y = torch.empty(x.shape[0], dtype=torch.int64)
        lib.run(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
