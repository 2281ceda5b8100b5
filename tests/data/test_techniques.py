"""Technique tags: labelled examples of our own, the table, and the figures on labels made by hand."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from cudal1_data import load_suite
from cudal1_data.techniques import BACKEND_NAMES, PATTERNS, TECHNIQUES, Tags, classify, top_techniques
from hypothesis import given, settings
from hypothesis import strategies as st

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def module(forward: str = "return x", init: str = "pass", head: str = "") -> str:
    return (
        f"{HEAD}{head}\nclass ModelNew(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {init}\n    def forward(self, x):\n        {forward}\n"
    )


def cuda(body: str, launch: str = "k<<<n / 256, 256>>>(x);", *, builder: str = "load_inline") -> str:
    """A program with a CUDA kernel."""
    text = f"__global__ void k(const float* x) {{\n{body}\n}}\nvoid run(float* x, int n) {{ {launch} }}"
    built = {
        "load_inline": "from torch.utils.cpp_extension import load_inline\nM = load_inline('m', '', [S], ['run'])",
        "load": "from torch.utils.cpp_extension import load\nM = load('m', ['k.cu'])",
        "nvrtc": "M = torch.cuda._compile_kernel(S, 'k')",
        "cupy": "import cupy\nM = cupy.RawKernel(S, 'k')",
        "nothing": "",
    }[builder]
    return module("return M.run(x)", head=f'S = """{text}"""\n{built}\n')


def triton(body: str, meta: str = "") -> str:
    head = (
        "import triton\nimport triton.language as tl\n@triton.jit\ndef kernel(x, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    v = tl.load(x + i)\n"
        f"    {body}\n    tl.store(x + i, v)\n"
    )
    return module(f"kernel[(8,)](x, BLOCK=128{meta}); return x", head=head)


SHOWS = {
    "layout": [
        module("return F.conv2d(x.to(memory_format=torch.channels_last), self.w)"),
        module("return torch.mm(x, self.t)", "self.register_buffer('t', self.weight.t().contiguous())"),
        module("return torch.mm(x, self.t)", "self.t = nn.Linear(4, 4).weight.T.contiguous()"),
        cuda("__shared__ float tile[32][33]; tile[0][0] = x[0];"),
    ],
    "shared-memory": [
        cuda("__shared__ float s[256]; s[threadIdx.x] = x[threadIdx.x];"),
        cuda("extern __shared__ float s[];"),
        triton("v = tl.dot(v[:, None], v[None, :])"),
    ],
    "fusion": [
        module("return torch.addmm(self.bias, x, self.w)"),
        module("return torch.compile(self.f)(x)"),
        module("return F.scaled_dot_product_attention(x, x, x)"),
        cuda("float fused_bias_relu = 0;"),
    ],
    "algebra": [
        module("return F.linear(x, self.w)", "self.w = self.linear.weight * 2.0"),
        module("return x @ self.s", "self.s = self.linear.weight.sum(0)"),
        module("return self.conv(x)", "self.conv.weight.data.div_(3.0)"),
    ],
    "launch": [
        cuda("", "dim3 block(16, 16); k<<<n, block>>>(x);"),
        cuda("for (int i = threadIdx.x; i < 9; i += blockDim.x * gridDim.x) {}"),
        cuda("").replace("__global__ void", "__global__ __launch_bounds__(256) void"),
        triton("v = v + 1", ", num_warps=8"),
        module("k(grid=(4, 4, 1), block=(32, 8, 1)); return x"),
    ],
    "reduction": [
        cuda("float v = __shfl_down_sync(0xffffffff, x[0], 16);"),
        cuda("for (int s = 128; s > 0; s >>= 1) { if (t < s) d[t] += d[t + s]; __syncthreads(); }"),
        cuda("typedef cub::BlockReduce<float, 256> R;"),
        triton("v = tl.sum(v, axis=0)"),
    ],
    "registers": [
        cuda("float4 v = reinterpret_cast<const float4*>(x)[0];"),
        cuda("#pragma unroll\nfor (int i = 0; i < 4; i++) {}"),
        cuda("float acc[8] = {0};"),
        triton("v = v\n    for j in tl.static_range(4):\n        v = v + 1"),
    ],
    "async": [
        module("self.g.replay(); return x", "self.g = torch.cuda.CUDAGraph()"),
        module("return x", "self.s = torch.cuda.Stream()"),
        module("return x.to('cuda', non_blocking=True)"),
        module("return torch.compile(self.f, mode='reduce-overhead')(x)"),
        cuda('asm("cp.async.ca.shared.global [%0], [%1], 16;");'),
    ],
}
DOES_NOT = {
    "layout": [module("return x.contiguous()"), module("return x.transpose(0, 1)")],
    "shared-memory": [cuda("// __shared__ would help here"), cuda("__shared__ float s[2];", builder="nothing")],
    "fusion": [module("return F.relu(x) + 1"), cuda("/* fused */"), module("return self.refuse(x)")],
    "algebra": [
        module("return x * self.scale"),
        module("return self.f(x)", "self.weight = nn.Parameter(torch.empty(3)); bound = 1 / 3 ** 0.5"),
        module("return self.step(x)\n    def step(self, x):\n        return x * self.weight"),
    ],
    "launch": [cuda("float v = x[0];"), module("grid = torch.meshgrid(x, x); return grid[0]")],
    "reduction": [cuda("float s = 0; for (int i = 0; i < 8; i++) s += x[i];"), module("return x.sum()")],
    "registers": [cuda("__shared__ float s[32];"), cuda("float v = x[4];"), module("float4 = 1; return x")],
    "async": [
        module("torch.cuda.synchronize(); return x"),
        module("return x.to('cuda')"),
        module("graph = 1; return x"),
    ],
}
WRITTEN = {
    "triton": triton("v = v + 1"),
    "cuda-load-inline": cuda("float v = x[0];"),
    "cuda-nvrtc": cuda("float v = x[0];", builder="nvrtc"),
    "c": module(
        "return F(x)",
        head='S = """#include <math.h>\nvoid f(float* x) {}"""\nimport ctypes\nL = ctypes.CDLL("f.so")\n',
    ),
    "torch-compile": module("return torch.compile(self.f)(x)"),
    "pytorch": module("return x + 1"),
}


def tags(source: str, reference: str | None = None) -> Tags:
    found = classify(source, reference)
    assert found is not None
    return found


@pytest.mark.parametrize("tag", TECHNIQUES)
def test_patterns_find_their_technique_and_nothing_else(tag: str) -> None:
    for source in SHOWS[tag]:
        assert tag in tags(source).techniques, source
    for source in DOES_NOT[tag]:
        assert tag not in tags(source).techniques, source


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_backends(backend: str) -> None:
    assert tags(WRITTEN[backend]).backend == backend
    assert "cuda-nvrtc" in tags(cuda("float v;", builder="cupy")).backends
    assert tags(cuda("float v;", builder="nothing")).backends == ("pytorch",)


def test_every_pattern_is_explained_and_no_tag_is_without_patterns(repository: Path) -> None:
    assert {pattern.tag for pattern in PATTERNS} == TECHNIQUES.keys()
    text = (repository / "docs" / "techniques.md").read_text()
    for pattern in PATTERNS:
        assert f"| {pattern.tag} | {pattern.name} | {pattern.reason} |" in text
    for backend, name in BACKEND_NAMES.items():
        assert f"| {backend} | {name} |" in text


def test_a_reference_reveals_left_out_work_and_fusion() -> None:
    """Left-out work, and a kernel for several steps of the reference, show only with the reference."""
    product = (
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, a, b):\n        return torch.diag(a) @ b\n"
    )
    short = module("return x[:, None] * x")
    assert "algebra" not in tags(short).techniques
    assert tags(short, product).signs["algebra"] == ("costly operation gone",)
    assert "algebra" not in tags(module("return torch.diag(x) @ x"), product).techniques
    two = product.replace("torch.diag(a) @ b", "torch.relu(a) + b")
    one = product.replace("torch.diag(a) @ b", "torch.relu(a)")
    kernel = cuda("float v = x[0];")
    assert "fusion" in tags(kernel, two).techniques
    assert "fusion" not in tags(kernel, one).techniques


@pytest.mark.parametrize("text", ["", "None", "def f(:", "x = 1", "\x00", "class Other: ...", "(" * 5000])
def test_no_program_has_no_tags(text: str) -> None:
    assert classify(text) is None


def test_a_sum_of_hundreds_of_terms_stops_nothing() -> None:
    long = module("return " + " + ".join(["x"] * 400))
    assert classify(long) == classify(module("return x + x"))
    assert classify(module("return x"), long) is None


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(st.text(max_size=60))
def test_comments_and_texts_of_a_program_show_nothing(text: str) -> None:
    line = (
        text.encode("ascii", "ignore")
        .decode()
        .replace("\n", " ")
        .replace("\r", " ")
        .replace("\x00", "")
        .replace("\x0c", "")
    )
    said = "".join(f"# {word} {line}\n" for word in ("__shared__", "channels_last", "CUDAGraph", "fused"))
    assert tags(said + module("return x + 1")).techniques == ()


def test_only_starter_variants_in_c_need_a_compiler() -> None:
    for task in load_suite("starter"):
        for variant in task.variants:
            found = tags(variant.source, task.source)
            assert (found.backend == "c") == ("compiler" in variant.needs), f"{task.id} {variant.name}"


def test_the_table_of_techniques() -> None:
    first = tags(SHOWS["async"][0])
    both = tags(SHOWS["async"][0].replace("return x", "return torch.addmm(x, x, x)"))
    rows = {row.tag: row for row in top_techniques([(first, 2.0), (both, 8.0), (both, None)])}
    assert (rows["async"].programs, rows["async"].correct, rows["async"].mean) == (3, 2, 5.0)
    assert rows["async"].geometric_mean == pytest.approx(4.0)
    assert (rows["fusion"].programs, rows["fusion"].mean) == (2, 8.0)
    assert [row.tag for row in top_techniques([(both, 8.0), (first, 2.0)])] == ["fusion", "async", "pytorch"]
    assert top_techniques([]) == ()
    [lost, _] = top_techniques([(first, None)])
    assert (lost.mean, lost.geometric_mean, lost.correct) == (None, None, 0)
    assert math.isfinite(rows["pytorch"].mean or math.nan)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["first", "second"])
def test_labels_made_by_hand(name: str, shared_data: Path, repository: Path) -> None:
    """Precision and recall over the labelled published programs stay what docs/techniques.md says."""
    labels = json.loads((repository / "docs" / "results" / "technique_labels.json").read_text())[name]
    suite = load_suite(shared_data / "cuda-l1" / "h100.jsonl")
    right = wrong = missed = backends = 0
    for task, label in labels.items():
        found = tags(suite.programs[task]["custom_code"], suite[task].source)
        mine, its = set(label["techniques"]), set(found.techniques)
        right, wrong, missed = right + len(mine & its), wrong + len(its - mine), missed + len(mine - its)
        backends += found.backend == label["backend"]
    told = (repository / "docs" / "techniques.md").read_text().replace("\n", " ")
    assert f"{right} of {right + wrong}" in told
    assert f"{right} of {right + missed}" in told
    assert backends == len(labels)


@pytest.mark.parametrize("part", ["/* ", "int a(", "dim3 a(", "__shared__ a[", "\n"])
def test_no_pattern_looks_from_everywhere_to_the_end(part: str) -> None:
    kernels = f"__global__ #include {part * (1_000_000 // len(part))}"
    text = f"import torch\nk = load_inline('k', '''{kernels}''')\nclass ModelNew: pass\n"
    began_s = time.process_time()
    assert classify(text) is not None
    assert time.process_time() - began_s < 30  # what does takes many minutes
