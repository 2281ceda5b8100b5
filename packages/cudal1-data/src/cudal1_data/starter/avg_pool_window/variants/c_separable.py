import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
void run(const float *x, float *y, long n, long h, long w, long k) {
    long m = w - k + 1;
    float r[w], s = 1.0f / (k * k);
    for (long i = 0; i < n; i++, x += h * w)
        for (long j = 0; j < h - k + 1; j++, y += m) {
            for (long t = 0; t < w; t++) r[t] = x[j * w + t];
            for (long a = 1; a < k; a++)
                for (long t = 0; t < w; t++) r[t] += x[(j + a) * w + t];
            for (long t = 0; t < m; t++) y[t] = r[t];
            for (long a = 1; a < k; a++)
                for (long t = 0; t < m; t++) y[t] += r[t + a];
            for (long t = 0; t < m; t++) y[t] *= s;
        }
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 4


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        n, c, h, w = x.shape
        x, k = x.contiguous(), self.k
        y = x.new_empty(n, c, h - k + 1, w - k + 1)
        lib.run(x.data_ptr(), y.data_ptr(), n * c, h, w, k)
        return y
