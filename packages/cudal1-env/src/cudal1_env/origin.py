"""Origin of a kernel (a library, a compiler or the program itself), by its name; no reward depends on it.

Names come from the profiler: demangled C++, or the plain name of a kernel in C or Triton. Sources of the patterns:

* PyTorch: namespaces of its sources (`at`, `c10`, `at_cuda_detail` for its copy of CUB, `pytorch_flash`,
  `PyTorchMemEffAttention`), and a few kernels in an anonymous namespace.
* torch.compile: `torch/_inductor/codegen/triton.py` names a kernel `triton_`, three letters of its kind, what it
  fuses and a number; on a CPU it wraps its code in the ranges that `torch/_inductor` and `torch/_dynamo` name.
* cuBLAS and cuDNN publish no list. Generated names of both end in `_5x_cublas`, `_5x_cudnn`. Published profiles (in
  issues of PyTorch, TensorFlow, vLLM and SGLang) show cuBLAS products as `nvjet_`, `sm90_xmma_gemm_`, `ampere_sgemm_`,
  `cutlass_80_simt_sgemm_`, `gemv2T_kernel_val`, `gemmSN_TN_kernel` ..., and cuDNN convolutions as `..._fprop_...`,
  `..._scudnn_...`, `implicit_convolve_sgemm` .... A CUTLASS kernel without one of these names counts as the program's
  own.

Only the function's name decides, not its arguments: a program's kernel may take `at::Half`. Not covered: a program
that gives its kernel a library's name is counted as that library.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from cudal1_env.records import Origin

_ARCHITECTURE = r"(?:sm\d+|volta|turing|ampere|hopper|blackwell|maxwell|pascal)"

_PATTERNS: tuple[tuple[Origin, str], ...] = (
    ("memory", r"Mem(?:cpy|set)\b"),
    ("inductor", r"triton_(?:poi|red|per|tem|for|spl|unk|mm|bmm)_"),
    (
        "inductor",
        r"(?:multi_kernel|cpp_fused)_|Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction\b|inductor::",
    ),
    ("aten", r"(?:at|c10|at_cuda_detail|pytorch_flash|PyTorchMemEffAttention|aten|torch|prims?)::"),
    ("aten", r"fmha_cutlass[FB]_|_ZN2at6native"),
    ("aten", r"\(anonymous namespace\)::(?:softmax_warp_(?:for|back)ward|elementwise_kernel_with_index)\b"),
    ("cudnn", r"\w*cudnn"),
    ("cudnn", rf"(?:{_ARCHITECTURE}_xmma|cutlass_\w*|cutlass)_\w*(?:[fw]prop|[dw]grad)"),
    ("cudnn", r"(?:precomputed|implicit|explicit)_convolve_|xmma_new::|\w*(?:nchwToNhwc|nhwcToNchw)Kernel\b"),
    ("cublas", r"cublas|internal::gemvx|gemv2[NT]_kernel|gemvNSP_|gemmSN_|gemmk1_|gemm_kernel2x2|splitKreduce_kernel"),
    ("cublas", r"(?:dot|reduce_1Block|scal|asum|nrm2)_kernel<.*\bcublas"),
    ("cublas", r"nvjet_"),
    ("cublas", rf"{_ARCHITECTURE}_\w*gemm"),
    ("cublas", r"cutlass(?:3x)?_(?:sm)?\d+_\w*gemm"),
    ("library", r"(?:nccl|magma_|cufft|cusolver|cusparse|curand|thrust::|cub::|mkldnn::|onednn::|dnnl|cutlass_cufft)"),
    ("library", r"(?:vector_fft|regular_fft|composite_2way_fft|r2c_|c2r_)"),
)
_KNOWN: tuple[tuple[Origin, re.Pattern[str]], ...] = tuple(
    (origin, re.compile(pattern)) for origin, pattern in _PATTERNS
)

_WRAPPED = re.compile(r"cutlass(?:__\w+)?::(?:Kernel2?|device_kernel)<(?:\w+::)*(\w+)")
"""A CUTLASS kernel, whose template argument names the operation."""
_ATEN_WRAPPED = re.compile(r"cutlass::(?:Kernel2?|device_kernel)<at::")
_RESULT = re.compile(r"(?:void|std::enable_if<.*?>::type) ")
_JIT = re.compile(r"@(?:\w+\.)*jit\b")
_DEF = re.compile(r"def (\w+)")


def triton_names(source: str) -> frozenset[str]:
    r"""Return the names of the functions that a program decorates with Triton's `jit`.

    The search reads each line once, because the text is untrusted and of any length.

    >>> sorted(triton_names("@triton.autotune([])\n@triton.jit\n# adds\ndef add_kernel(x):\n    pass\n"))
    ['add_kernel']
    """
    found: set[str] = set()
    marked = False
    for line in source.split("\n") if "triton" in source else ():
        text = line.strip()
        if _JIT.match(text):
            marked = True
        elif text and not text.startswith(("@", "#")):
            if marked and (defined := _DEF.match(text)):
                found.add(defined[1])
            marked = False
    return frozenset(found)


def origin_of(name: str, triton: Collection[str] = ()) -> Origin:
    """Return the origin of a kernel.

    Args:
        name: Name from the profiler.
        triton: Names of the program's own Triton kernels.

    >>> origin_of("ampere_sgemm_128x64_nn"), origin_of("softmax_kernel(float const*, float*, int)")
    ('cublas', 'own')
    """
    if name in triton:
        return "triton"
    if _ATEN_WRAPPED.search(name):
        return "aten"
    result = _RESULT.match(name)
    start = result.end() if result is not None else 0
    wrapped = _WRAPPED.match(name, start)
    if wrapped is not None and "cudnn" not in wrapped[0]:
        start = wrapped.start(1)
    for origin, pattern in _KNOWN:
        if pattern.match(name, start):
            return origin
    return "own"
