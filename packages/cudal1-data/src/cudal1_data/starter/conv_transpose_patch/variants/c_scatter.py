import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = """
void run(const float *z, const float *b, float *y, long n, long o, long p, long h, long w) {
    for (long i = 0; i < n * o; i++)
        for (long j = 0; j < h * p; j++, y += w * p) {
            const float *s = z + (i * p + j % p) * p * h * w + j / p * w;
            for (long q = 0; q < p; q++)
                for (long t = 0; t < w; t++) y[t * p + q] = s[q * h * w + t] + b[i % o];
        }
}
"""
path = tempfile.mkdtemp() + "/run.so"
flags = ["-O3", "-march=native", "-ffast-math", "-nostartfiles", "-shared", "-fPIC"]
subprocess.run(["gcc", *flags, "-xc", "-", "-o", path, "-lm"], input=SOURCE.encode(), check=True)
lib = ctypes.CDLL(path)
lib.run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 5


class ModelNew(nn.Module):
    def __init__(self, in_ch, out_ch, p):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_ch, out_ch, p, stride=p)

    def forward(self, x):
        n, c, h, w = x.shape
        k, b = self.up.weight, self.up.bias
        o, p = k.shape[1:3]
        z = x.new_empty(n, o * p * p, h * w)
        for i in range(n):
            torch.mm(k.view(c, -1).t(), x[i].reshape(c, h * w), out=z[i])
        y = x.new_empty(n, o, h * p, w * p)
        lib.run(z.data_ptr(), b.data_ptr(), y.data_ptr(), n, o, p, h, w)
        return y
