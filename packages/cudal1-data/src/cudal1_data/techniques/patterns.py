"""The patterns that tag programs, each with its reason; docs/techniques.md describes them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cudal1_data.techniques.parts import C_BUILDERS, Parts

TECHNIQUES = {
    "layout": "memory layout",
    "shared-memory": "coalescing and shared memory",
    "fusion": "operation fusion",
    "algebra": "algebraic short-circuit",
    "launch": "thread-block configuration",
    "reduction": "warp-level and branchless reductions",
    "registers": "register tuning: vectorised loads, unrolling",
    "async": "asynchronous execution, CUDA graphs, minimal synchronisation",
}
"""Tags, with the paper's names."""

Backend = Literal["triton", "cuda-load-inline", "cuda-nvrtc", "c", "torch-compile", "pytorch"]
BACKEND_NAMES: dict[Backend, str] = {
    "triton": "Triton kernels",
    "cuda-load-inline": "CUDA C++ built by torch's extension loader",
    "cuda-nvrtc": "CUDA C++ compiled at run time",
    "c": "C or C++ for the processor",
    "torch-compile": "torch.compile",
    "pytorch": "PyTorch alone",
}
"""Backends, the most specific first: a program's backend is the first that it uses."""

WEIGHTS = r"(?:weight|bias|gamma|beta|running_mean|running_var|scale)"


@dataclass(frozen=True)
class Pattern:
    """One sign of a technique."""

    tag: str
    """The technique."""
    name: str
    """What the pattern matches."""
    reason: str
    """Why that indicates the technique."""
    seen: Callable[[Parts], bool]
    """Test of a program for the pattern."""


def backends(parts: Parts) -> tuple[Backend, ...]:
    """Return the backends that a program uses, the most specific first; `pytorch` if there is no other."""
    found: dict[Backend, bool] = {
        "triton": bool(parts.triton),
        "cuda-load-inline": bool(parts.cuda) and parts.loads_extensions,
        "cuda-nvrtc": bool(parts.cuda) and parts.compiles_at_run_time,
        "c": not parts.cuda and bool(parts.texts) and (parts.loads_extensions or parts.has_call(*C_BUILDERS)),
        "torch-compile": parts.has_call("torch.compile"),
    }
    return tuple(backend for backend, shown in found.items() if shown) or ("pytorch",)


def _cuda(expression: str) -> Callable[[Parts], bool]:
    compiled = re.compile(expression)
    return lambda parts: bool(compiled.search(parts.cuda))


def _python(expression: str, *words: str) -> Callable[[Parts], bool]:
    """Return a search of the Python, which runs only if one of the words occurs."""
    compiled = re.compile(expression)
    return lambda parts: parts.may_say(*words) and bool(compiled.search(parts.python))


def _triton(expression: str) -> Callable[[Parts], bool]:
    compiled = re.compile(expression)
    return lambda parts: bool(compiled.search(parts.triton))


def _calls(*ends: str) -> Callable[[Parts], bool]:
    return lambda parts: parts.has_call(*ends)


def _packed_weights(parts: Parts) -> bool:
    moves = ("t", "T", "mT", "transpose", "permute")
    if not parts.may_say("weight", "register_buffer") or parts.words.isdisjoint(moves):
        return False
    transposed = r"(?:\.t\(\)|\.T|\.mT|\.transpose\([^()]*\)|\.permute\([^()]*\))\.contiguous\(\)"
    return bool(
        re.search(rf"weight\w*{transposed}", parts.python)
        or (
            "register_buffer(" in parts.python
            and re.search(rf"register_buffer\([^\n]{{0,400}}{transposed}", parts.outside_forward)
        )
    )


def _permuted_for_the_operator(parts: Parts) -> bool:
    """Return whether a program calls a functional convolution and reorders dimensions at least twice."""
    if not parts.may_say("conv"):
        return False
    permutations = len(re.findall(r"\.(?:transpose|permute|movedim)\(", parts.python))
    return permutations >= 2 and bool(re.search(r"F\.conv\dd\(|functional\.conv\dd\(", parts.python))


def _transposed_for_a_scan(parts: Parts) -> bool:
    if not parts.may_say("transpose"):
        return False
    along = r"\b(?:cumsum|cumprod|log_softmax|softmax|softmin)\("
    return bool(re.search(rf"{along}[^\n]{{0,400}}\.contiguous\(\), dim=-1\)\.transpose\(", parts.python))


def _folded_weights(parts: Parts) -> bool:
    """Return whether a program does arithmetic on weights before the calls, or a name says so."""
    # Only a program with such arithmetic anywhere is searched before the calls.
    changed = _may_change_a_weight(parts) and any(map(_changes_a_weight, parts.nodes))
    if changed and any(map(_changes_a_weight, ast.walk(parts.outside))):
        return True
    return bool(_FOLDED.search(parts.said) and _FOLDED.search(parts.python))


def _may_change_a_weight(parts: Parts) -> bool:
    """Return whether a program names a weight or a string contains one: few programs do."""
    if any(map(_WEIGHT.fullmatch, parts.words)):
        return True
    if not parts.words.isdisjoint(_CHANGES) and _WEIGHT.search(parts.said):
        return True
    texts = (one.value for one in parts.nodes if isinstance(one, ast.Constant) and isinstance(one.value, str))
    return any(_OF_SOMETHING.search(text) for text in texts)


_WEIGHT = re.compile(WEIGHTS)
_OF_SOMETHING = re.compile(rf"\.{WEIGHTS}\b")
_FOLDED = re.compile(r"\bsum_(?:of_)?w|weight_sum|(?:fold|combine)d?_(?:weight|bias|conv|bn)|fused_weight")


_CHANGES = ("mul_", "div_", "add_", "sub_", "sum", "mean")


def _changes_a_weight(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.Add | ast.Sub):
        sides = (ast.unparse(side) for side in (node.left, node.right) if _names_a_weight(side))
        return any(re.search(rf"(?:self\.|\.){WEIGHTS}\b(?!\.(?:size|shape))", side) for side in sides)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        return bool(re.search(rf"{WEIGHTS}(?:\.data|\.view\([^()]*\))?\.\w+$", ast.unparse(node.func)))
    return False


def _names_a_weight(node: ast.AST) -> bool:
    """Return whether an attribute has a weight's name or a string might: only these are unparsed."""
    if isinstance(node, ast.Name | ast.Constant) and not isinstance(getattr(node, "value", None), str):
        return False
    return any(
        (isinstance(one, ast.Attribute) and _WEIGHT.fullmatch(one.attr))
        or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in ast.walk(node)
    )


def _costly_operation_gone(parts: Parts) -> bool:
    """Return whether the reference has a costly operation that the program lacks, and the program has no kernel."""
    if parts.reference is None or parts.cuda or parts.triton or parts.texts:
        return False
    own = {"product"} if parts.multiplies else set[str]()
    for name in parts.calls:
        if match := _COSTLY.search(name):
            own.add(_kind(match[0]))
        if re.search(r"(?:addmm|baddbmm|linear|conv\dd|conv_transpose\dd|addmv|mv|dot)$", name):
            own |= {"product", "module"}
    return bool(_costs(parts.reference) - own)


_COSTLY = re.compile(
    r"(?:^|\.)(?:matmul|mm|bmm|diag|diag_embed|tril|triu|einsum|kron|linalg\.inv)$|nn\.(?:Linear|Conv\w+)$"
)


@functools.lru_cache(maxsize=16)
def _costs(reference: ast.Module) -> frozenset[str]:
    """Return the kinds of costly operations in a reference, cached: many programs replace the same one."""
    there = {"product"} if re.search(r" @ ", ast.unparse(reference)) else set[str]()
    names = {ast.unparse(node.func) for node in ast.walk(reference) if isinstance(node, ast.Call)}
    return frozenset(there | {_kind(match[0]) for match in map(_COSTLY.search, names) if match})


def _kind(name: str) -> str:
    last = name.rpartition(".")[2]
    if last in ("matmul", "mm", "bmm", "einsum"):
        return "product"
    return "module" if last[0].isupper() else last


def _own_kernel_for_several(parts: Parts) -> bool:
    return bool(parts.cuda or parts.triton) and parts.reference_operations >= 2


def _many_sided_block(parts: Parts) -> bool:
    """Return whether Python launches a grid or block of several dimensions."""
    for node in parts.nodes:
        if isinstance(node, ast.keyword) and node.arg in ("block", "grid") and isinstance(node.value, ast.Tuple):
            sizes = [one for one in node.value.elts if not (isinstance(one, ast.Constant) and one.value == 1)]
            if len(sizes) >= 2:
                return True
    return parts.may_say("block_") and bool(parts.cuda and re.search(r"\bblock_[xyz]\s*=\s*min\(", parts.python))


def _halving_loop(parts: Parts) -> bool:
    steps = re.search(r">>=\s*1|/=\s*2|<<=\s*1|\*=\s*2", parts.cuda)
    apart = re.search(r"\[\s*\w+\s*[+-]\s*\w+\s*\]", parts.cuda)
    return bool(steps and apart and "__syncthreads" in parts.cuda)


_FUSED = re.compile(r"(?:\b|_)fus(?:e|ed|ing|ion)(?:_|\b)", re.IGNORECASE)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        "layout",
        "channels_last",
        "asks for the layout in which convolution kernels read channels side by side",
        _python(r"channels_last", "channels_last"),
    ),
    Pattern(
        "layout",
        "weight kept transposed",
        "a weight is transposed once, not in each call",
        _packed_weights,
    ),
    Pattern(
        "layout",
        "dimensions permuted around a convolution",
        "data is brought into the order that another operator wants",
        _permuted_for_the_operator,
    ),
    Pattern(
        "layout",
        "columns transposed into rows",
        "a scan or softmax reads what lies side by side",
        _transposed_for_a_scan,
    ),
    Pattern(
        "layout",
        "padded tile",
        "one more column puts the rows of a shared tile into different banks",
        _cuda(r"__shared__[^;]{0,400}\[\s*\w+\s*\]\s*\[\s*\w+\s*\+\s*1\s*\]|__shared__[^;]{0,400}\[32\]\s*\[33\]"),
    ),
    Pattern("shared-memory", "__shared__", "threads of a block share what one of them read", _cuda(r"__shared__")),
    Pattern(
        "shared-memory",
        "tl.dot",
        "Triton keeps the tiles of a product in shared memory",
        _triton(r"\btl\.dot\("),
    ),
    Pattern(
        "fusion",
        "fused library call",
        "one call does a product and a sum, or a whole attention",
        _calls(
            "addmm",
            "baddbmm",
            "addbmm",
            "addmv",
            "addcmul",
            "addcdiv",
            "addmm_",
            "addcmul_",
            "scaled_dot_product_attention",
        ),
    ),
    Pattern("fusion", "torch.compile", "its compiler joins pointwise operators", _calls("torch.compile")),
    Pattern(
        "fusion",
        "name that says fused",
        "authors name what they join",
        lambda parts: bool(_FUSED.search(parts.cuda) or (_FUSED.search(parts.said) and _FUSED.search(parts.python))),
    ),
    Pattern(
        "fusion",
        "scripted sequence in place",
        "a scripted function with several in-place steps is one fused loop",
        lambda parts: (
            parts.has_call("torch.jit.script") and len(re.findall(r"(?<!init)\.[a-z]\w*_\(", parts.python)) >= 2
        ),
    ),
    Pattern(
        "fusion",
        "own kernel for several operations",
        "the reference does at least two operations and the program has a kernel of its own",
        _own_kernel_for_several,
    ),
    Pattern(
        "algebra",
        "arithmetic on weights before the calls",
        "scales, sums and normalisations move into weights",
        _folded_weights,
    ),
    Pattern(
        "algebra",
        "costly operation gone",
        "the reference multiplies matrices and the program does not",
        _costly_operation_gone,
    ),
    Pattern("launch", "__launch_bounds__", "bounds registers for a chosen block", _cuda(r"__launch_bounds__")),
    Pattern(
        "launch",
        "registers bounded by a flag",
        "trades registers for occupancy",
        _python(r"maxrregcount", "maxrregcount"),
    ),
    Pattern(
        "launch", "occupancy asked", "the block follows from the device", _cuda(r"cudaOccupancy|multiProcessorCount")
    ),
    Pattern(
        "launch",
        "grid or block of several dimensions",
        "the shape of blocks follows the data",
        lambda parts: bool(re.search(r"\bdim3\s+\w+\s*\([^;]{0,400}?,", parts.cuda)) or _many_sided_block(parts),
    ),
    Pattern(
        "launch",
        "grid-stride loop",
        "the grid is chosen freely, threads take several elements",
        _cuda(r"blockDim\.x\s*\*\s*gridDim\.x|gridDim\.x\s*\*\s*blockDim\.x"),
    ),
    Pattern(
        "launch",
        "Triton configuration",
        "warps and stages are chosen or tuned",
        lambda parts: (
            bool(parts.triton)
            and (
                parts.may_say("num_warps", "num_stages", "autotune")
                or (parts.may_say("Config") and "triton.Config" in parts.python)
            )
        ),
    ),
    Pattern(
        "reduction",
        "warp shuffle or vote",
        "lanes of a warp reduce without memory and without branches",
        _cuda(r"__shfl_|__reduce_\w+_sync|__ballot_sync|cg::reduce|cooperative_groups::reduce|tiled_partition"),
    ),
    Pattern("reduction", "cub", "CUB's reductions are warp-level", _cuda(r"cub::(?:Warp|Block|Device)(?:Reduce|Scan)")),
    Pattern("reduction", "tree in shared memory", "a halving (or doubling) loop over partners", _halving_loop),
    Pattern(
        "reduction",
        "tl.sum, tl.max",
        "Triton reduces tiles by warp shuffles",
        _triton(r"\btl\.(?:sum|max|min|argmax|argmin|reduce|cumsum|cumprod)\("),
    ),
    Pattern(
        "registers",
        "vector types",
        "one instruction loads several elements",
        _cuda(r"\b(?:float|int|uint|double|half|__half|bfloat16|__nv_bfloat16)[24]\b(?:\s*\w+\s*[=;\[]|\s*\*|\s*>)"),
    ),
    Pattern("registers", "#pragma unroll", "unrolled loops keep their values in registers", _cuda(r"#pragma unroll")),
    Pattern(
        "registers",
        "array of accumulators",
        "each thread keeps several results in registers",
        _cuda(
            r"(?m)^(?!.*__shared__)[ \t]*(?:float|double|scalar_t|acc_t|T|half)\s+"
            r"\w+\s*\[\s*(?:\d+|[A-Z]\w*)\s*\](?:\s*=|\s*;)"
        ),
    ),
    Pattern("registers", "tl.static_range", "Triton unrolls such a loop", _triton(r"tl\.static_range")),
    Pattern(
        "async",
        "CUDA graph",
        "one launch replays many kernels",
        lambda parts: (
            parts.has_call("cuda.CUDAGraph", "cuda.graph", "make_graphed_callables")
            or bool(re.search(r"cudaGraph(?:Launch|Instantiate)", parts.cuda))
            or (
                not parts.words.isdisjoint(("reduce-overhead", "max-autotune"))
                and bool(re.search(r"mode=['\"](?:reduce-overhead|max-autotune)['\"]", parts.python))
            )
        ),
    ),
    Pattern(
        "async",
        "streams",
        "work overlaps other work",
        lambda parts: (
            parts.has_call("cuda.Stream", "cuda.stream", "wait_stream")
            or bool(re.search(r"cudaStreamCreate|cudaMemcpyAsync", parts.cuda))
        ),
    ),
    Pattern(
        "async",
        "copies that do not wait",
        "the host continues while bytes move",
        _python(r"non_blocking=True", "non_blocking"),
    ),
    Pattern(
        "async",
        "asynchronous loads",
        "shared memory fills while the block computes",
        _cuda(r"cp\.async|__pipeline_memcpy_async|memcpy_async|cuda::pipeline"),
    ),
)
"""All patterns, by tag."""
