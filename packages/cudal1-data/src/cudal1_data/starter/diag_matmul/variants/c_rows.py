import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

code = """
void run(const float *a, const float *b, float *y, long n, long m) {
  for (long i = 0; i < n; i++)
    for (long j = 0; j < m; j++) y[i * m + j] = a[i] * b[i * m + j];
}
"""


def build(code):
    path = tempfile.mkdtemp() + "/op"
    with open(path + ".c", "w") as file:
        file.write(code)
    flags = ["-O3", "-march=native", "-fopenmp-simd", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, path + ".c", "-o", path + ".so", "-lm"], check=True)
    return ctypes.CDLL(path + ".so")


lib = build(code)
lib.run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        y = torch.empty_like(b)
        lib.run(a.data_ptr(), b.data_ptr(), y.data_ptr(), b.shape[0], b.shape[1])
        return y
