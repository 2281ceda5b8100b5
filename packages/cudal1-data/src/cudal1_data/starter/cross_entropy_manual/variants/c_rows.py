import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
#include <math.h>
void run(const float *x, const long *t, float *y, long b, long n) {
    double a = 0;
    for (long i = 0; i < b; i++, x += n) {
        float m = x[0], s = 0;
        for (long j = 0; j < n; j++) m = fmaxf(m, x[j]);
        for (long j = 0; j < n; j++) s += expf(x[j] - m);
        a += logf(s) + m - x[t[i]];
    }
    *y = a / b;
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2


class ModelNew(nn.Module):
    def forward(self, logits, target):
        x, t = logits.contiguous(), target.contiguous()
        y = x.new_empty(())
        lib.run(x.data_ptr(), t.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
