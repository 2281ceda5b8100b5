import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
void run(const float *x, float *y, long n, long m) {
    double s[64], q[64];
    for (long k = 0; k < m; k += 64) {
        long w = m - k < 64 ? m - k : 64;
        for (long j = 0; j < w; j++) s[j] = q[j] = 0;
        for (long i = 0; i < n; i++)
            for (long j = 0; j < w; j++) {
                double v = x[i * m + k + j];
                s[j] += v;
                q[j] += v * v;
            }
        for (long j = 0; j < w; j++) y[k + j] = (q[j] - s[j] * s[j] / n) / (n - 1);
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
        y = x.new_empty(x.shape[1])
        lib.run(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
