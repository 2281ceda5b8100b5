"""Functions that combine the reductions of a row's threads: shuffles, and shared memory between warps."""

from __future__ import annotations

JOIN = {"sum": "{0} + {1}", "max": "fmaxf({0}, {1})", "min": "fminf({0}, {1})"}
IDENTITY = {"sum": "0.0f", "product": "1.0f", "max": "(-1.0f / 0.0f)", "min": "(1.0f / 0.0f)"}


def reduction(how: str, threads: int) -> str:
    """Return the function that combines the reductions of a row's threads."""
    join = JOIN[how].format("x", "__shfl_xor_sync(0xffffffffu, x, step)")
    warp = f"""#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x = {join};
"""
    if threads == 32:
        return f"__device__ __forceinline__ float join_{how}(float x) {{\n{warp}    return x;\n}}\n"
    warps = threads // 32
    return f"""__device__ __forceinline__ float join_{how}(float x) {{
    __shared__ float parts[{warps}];
{warp}    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    float whole = parts[0];
#pragma unroll
    for (int part = 1; part < {warps}; ++part) whole = {JOIN[how].format("whole", "parts[part]")};
    return whole;
}}
"""


def reduction_of_columns(how: str, lanes: int) -> str:
    """Return the function that combines the lanes' reductions of neighbouring rows."""
    return f"""__device__ __forceinline__ float join_{how}(float x) {{
    __shared__ float parts[{lanes}][32];
    __syncthreads();
    parts[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    float whole = parts[0][threadIdx.x];
#pragma unroll
    for (int part = 1; part < {lanes}; ++part) whole = {JOIN[how].format("whole", "parts[part][threadIdx.x]")};
    return whole;
}}
"""


SCANS = {"sum": "+", "product": "*"}
"""Operator of each scan."""


def _prefix(how: str) -> str:
    """Return the lines that combine the values of earlier threads of a warp."""
    return f"""    const unsigned int place = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {{
        const float other = __shfl_up_sync(0xffffffffu, x, step);
        if (place >= step) x {SCANS[how]}= other;
    }}
"""


def scan(how: str, threads: int) -> str:
    """Return the function that joins the values of earlier threads, and carries the result to the next elements."""
    head = f"__device__ __forceinline__ float {scan_name(how)}(float x, float& carry) {{\n"
    if threads == 32:
        last = f"    x {SCANS[how]}= carry;\n    carry = __shfl_sync(0xffffffffu, x, 31);\n    return x;\n}}\n"
        return head + _prefix(how) + last
    return f"{_of_warps(how, head, threads)}    return x {SCANS[how]} before;\n}}\n"


def scan_name(how: str, *, parts: bool = False) -> str:
    """Return the name of a scan's function.

    Args:
        how: Its operation.
        parts: Whether a thread has several elements.
    """
    return ("join_parts" if parts else "join_scan") + ("" if how == "sum" else f"_{how}")


def scan_of_parts(how: str, threads: int) -> str:
    """Return the function that joins the earlier threads' values, for scans with several elements per thread."""
    head = f"__device__ __forceinline__ float {scan_name(how, parts=True)}(float x, float& carry) {{\n"
    mine = (
        "    const float others = __shfl_up_sync(0xffffffffu, x, 1);\n"
        f"    const float mine = place == 0 ? {IDENTITY[how]} : others;\n"
    )
    if threads == 32:
        last = f"    const float before = carry;\n    carry {SCANS[how]}= __shfl_sync(0xffffffffu, x, 31);\n"
        return f"{head}{_prefix(how)}{mine}{last}    return before {SCANS[how]} mine;\n}}\n"
    return f"{_of_warps(how, head, threads)}{mine}    return before {SCANS[how]} mine;\n}}\n"


def _of_warps(how: str, head: str, threads: int) -> str:
    """Return the lines that join the values of earlier warps."""
    warps = threads // 32
    return f"""{head}    __shared__ float ends[{warps}];
{_prefix(how)}    __syncthreads();
    if (place == 31) ends[threadIdx.x / 32] = x;
    __syncthreads();
    float before = carry, whole = carry;
#pragma unroll
    for (int part = 0; part < {warps}; ++part) {{
        if (part < threadIdx.x / 32) before {SCANS[how]}= ends[part];
        whole {SCANS[how]}= ends[part];
    }}
    carry = whole;
"""
