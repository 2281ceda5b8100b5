import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
void run(const float *x, float *y, long r, long n) {
    for (long i = 0; i < r; i++, x += n, y += n) {
        double s = 0;
        for (long j = 0; j < n; j++) {
            s += x[j];
            y[j] = s;
        }
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
        y = torch.empty_like(x)
        lib.run(x.data_ptr(), y.data_ptr(), *x.shape)
        return y
