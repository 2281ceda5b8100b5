import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
void run(const float *x, float *y, long r, long n) {
    for (long i = 0; i < r; i += 4) {
        long m = r - i < 4 ? r - i : 4;
        double s[4] = {0};
        for (long j = 0; j < n; j++)
            for (long k = 0; k < m; k++) {
                s[k] += x[(i + k) * n + j];
                y[(i + k) * n + j] = s[k];
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
