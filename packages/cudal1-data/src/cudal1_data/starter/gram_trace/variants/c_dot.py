import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
void run(const float *a, const float *b, float *y, long n, long m) {
    for (long i = 0; i < n; i++, a += m, b += m) {
        float t = 0;
        for (long j = 0; j < m; j++) t += a[j] * b[j];
        y[i] = t;
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
        y = torch.empty(a.shape[0])
        lib.run(a.data_ptr(), b.data_ptr(), y.data_ptr(), a.shape[0], a[0].numel())
        return y
