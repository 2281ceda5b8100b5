"""Kernels without rows: each thread computes one or several elements."""

from __future__ import annotations

from cudal1_data.kernelgen.codegen.cuda.text import TYPES, CudaKernel, Share, Writer, stored, whole_kernel, wide_type
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import Kernel
from cudal1_data.kernelgen.ir import FLOATS


def pointwise_kernel(kernel: Kernel, name: str, *, threads: int, vector: int) -> CudaKernel:
    """Return a kernel without rows.

    Args:
        kernel: Its operators.
        name: Its name.
        threads: Threads of a block.
        vector: Elements of a thread; floating-point tensors of the whole shape are read and written as such vectors.

    Raises:
        UnsuitableError: The vector does not divide the number of elements, or a tensor is too large.
    """
    if kernel.trailing or kernel.size % vector:
        raise UnsuitableError(f"vectors of {vector} do not divide the elements of {kernel.domain}; take a vector of 1")
    kernel.check_places()
    writer = Writer(kernel)
    before: list[str] = []
    for leaf in kernel.leaves:
        whole = leaf.dims == kernel.domain and not leaf.strides and not kernel.is_table(leaf)
        if vector > 1 and whole and leaf.dtype in FLOATS:
            before.append(writer.load_vector(leaf, vector, "item"))
    stores, made, after = list[str](), list[str](), list[str]()
    outs = writer.known.outputs(len(kernel.outputs))
    for place, node in enumerate(kernel.outputs):
        value = stored(writer.value(node, False), node.dtype)
        if vector > 1:
            wide = wide_type(node.dtype, vector)
            stores.append(f"reinterpret_cast<{TYPES[node.dtype]}*>(&made{place})[part] = {value};")
            made.append(f"{wide} made{place};")
            after.append(f"reinterpret_cast<{wide}*>({outs[place]})[item] = made{place};")
        else:
            stores.append(f"{outs[place]}[i] = {value};")
    size = writer.constants.name("SIZE", kernel.size)
    lines = [
        f"const unsigned int item = blockIdx.x * {threads}u + threadIdx.x;",
        f"if (item >= {size} / {vector}) return;" if vector > 1 else f"if (item >= {size}) return;",
        *before,
        *made,
        "#pragma unroll",
        f"for (unsigned int part = 0; part < {vector}u; ++part) {{",
        f"    const unsigned int i = item * {vector}u + part;",
        *(f"    {line}" for line in (*writer.lines, *stores)),
        "}",
        *after,
    ]
    comment = "All operators are fused: each element is read once and written once."
    comment += f" A thread moves {vector} elements at once." if vector > 1 else ""
    share = Share(kernel.size, threads * vector, f"{threads} * {vector}" if vector > 1 else "")
    return whole_kernel(writer, name, lines, (share,), (threads, 1, 1), comment=comment)
