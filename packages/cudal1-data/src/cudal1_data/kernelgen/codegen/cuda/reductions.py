"""Functions that combine the reductions of a row's threads: shuffles, and shared memory between warps."""

from __future__ import annotations

JOIN = {"sum": "{0} + {1}", "max": "fmaxf({0}, {1})", "min": "fminf({0}, {1})"}
IDENTITY = {"sum": "0.0f", "max": "(-1.0f / 0.0f)", "min": "(1.0f / 0.0f)"}


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


_PREFIX = """    const unsigned int place = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
        const float other = __shfl_up_sync(0xffffffffu, x, step);
        if (place >= step) x += other;
    }
"""


def scan(threads: int) -> str:
    """Return the function that adds the values of earlier threads, and carries the sum to the next elements."""
    head = "__device__ __forceinline__ float join_scan(float x, float& carry) {\n"
    if threads == 32:
        last = "    x += carry;\n    carry = __shfl_sync(0xffffffffu, x, 31);\n    return x;\n}\n"
        return head + _PREFIX + last
    return f"{_of_warps(head, threads)}    return x + before;\n}}\n"


def scan_of_parts(threads: int) -> str:
    """Return the function that sums the earlier threads' values, for scans with several elements per thread."""
    head = "__device__ __forceinline__ float join_parts(float x, float& carry) {\n"
    mine = (
        "    const float others = __shfl_up_sync(0xffffffffu, x, 1);\n"
        "    const float mine = place == 0 ? 0.0f : others;\n"
    )
    if threads == 32:
        last = "    const float before = carry;\n    carry += __shfl_sync(0xffffffffu, x, 31);\n"
        return f"{head}{_PREFIX}{mine}{last}    return before + mine;\n}}\n"
    return f"{_of_warps(head, threads)}{mine}    return before + mine;\n}}\n"


def _of_warps(head: str, threads: int) -> str:
    """Return the lines that sum the values of earlier warps."""
    warps = threads // 32
    return f"""{head}    __shared__ float ends[{warps}];
{_PREFIX}    __syncthreads();
    if (place == 31) ends[threadIdx.x / 32] = x;
    __syncthreads();
    float before = carry, whole = carry;
#pragma unroll
    for (int part = 0; part < {warps}; ++part) {{
        if (part < threadIdx.x / 32) before += ends[part];
        whole += ends[part];
    }}
    carry = whole;
"""
