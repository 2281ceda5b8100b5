import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *a, const float *b, float *y, long m, long n) {
    double t = 0;
    for (long i = 0; i < m; i++, a += n, b += n) {
        float s = 0;
        for (long j = 0; j < n; j++) {
            float d = fabsf(a[j] - b[j]), c = fminf(d, 1.0f);
            s += c * (d - 0.5f * c);
        }
        t += s;
    }
    *y = t / ((double)m * n);
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2


class ModelNew(nn.Module):
    def forward(self, pred, target):
        a, b = pred.contiguous(), target.contiguous()
        y = a.new_empty(())
        lib.run(a.data_ptr(), b.data_ptr(), y.data_ptr(), a.shape[0], a.shape[1])
        return y
