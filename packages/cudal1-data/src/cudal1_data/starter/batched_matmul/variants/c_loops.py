import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
void run(const float *a, const float *b, float *y, long s, long n, long k, long m) {
    for (; s--; a += n * k, b += k * m, y += n * m)
        for (long i = 0; i < n; i++)
            for (long l = 0; l < k; l++)
                for (long j = 0; j < m; j++) y[i * m + j] += a[i * k + l] * b[l * m + j];
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 4


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        s, n, k = a.shape
        m = b.shape[2]
        y = torch.zeros(s, n, m)
        lib.run(a.data_ptr(), b.data_ptr(), y.data_ptr(), s, n, k, m)
        return y
