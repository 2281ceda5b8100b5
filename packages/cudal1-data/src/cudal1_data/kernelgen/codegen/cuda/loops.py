"""Loops over time in one launch: a thread keeps the state of an element."""

from __future__ import annotations

from dataclasses import replace

from cudal1_data.kernelgen.codegen.cuda.text import READS, CudaKernel, Share, Writer, stored, whole_kernel
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.fusion import LoopStep


def loop_kernel(step: LoopStep, name: str, *, threads: int, unroll: int) -> CudaKernel:
    """Return a kernel in which a thread runs all steps of a loop for one element.

    Args:
        step: The loop.
        name: Its name.
        threads: Threads of a block.
        unroll: Unrolled steps.

    Raises:
        UnsuitableError: An element of a step needs other elements of the previous step, or a tensor is too large.
    """
    if step.whole is None:
        raise UnsuitableError("elements of the loop's states need each other; PyTorch keeps the loop")
    loop, kernel = step.loop, step.whole
    kernel.check_places(*step.kept_dims)
    writer = Writer(kernel)
    for number, state in enumerate(loop.states):
        writer.vectors[id(state)] = f"state{number}"
    begin = [
        f"float state{number} = {READS[state.dtype].format(f'{writer.known.pointer(leaf)}[i]')};"
        for number, state in enumerate(loop.states)
        for leaf in kernel.leaves
        if leaf is state
    ]
    for leaf in kernel.leaves:
        if leaf.strides:
            where = kernel.offset(leaf, False, place="i", row="row", col="col")
            pointer = writer.known.pointer(leaf)
            writer.vectors[id(leaf)] = READS[leaf.dtype].format(f"{pointer}[{where} + step * {leaf.pace}]")
    for node in step.invariant:
        writer.value(node, False)
    begin += writer.lines
    writer.lines = []
    outs = writer.known.outputs(len(loop.kept) + len(step.finals))
    nexts = [f"state{number} = {writer.value(node, False)};" for number, node in enumerate(loop.nexts)]
    stores = [
        f"{out}[{where}] = {stored(writer.value(node, False), node.dtype)};"
        for out, node, where in zip(outs, loop.kept, step.places("i", "turn"), strict=False)
    ]
    final = [
        f"{out}[i] = {stored(f'state{number}', loop.states[number].dtype)};"
        for out, number in zip(outs[len(stores) :], step.finals, strict=True)
    ]
    lines = [
        f"const unsigned int i = blockIdx.x * {threads}u + threadIdx.x;",
        f"if (i >= {writer.constants.name('SIZE', kernel.size)}) return;",
        *begin,
        f"#pragma unroll {unroll}",
        f"for (unsigned int turn = 0; turn < {len(loop.steps)}u; ++turn) {{",
        f"    const unsigned int step = {loop.steps.start}u + turn * {loop.steps.step}u;",
        *(f"    {line}" for line in (*writer.lines, *stores, *nexts)),
        "}",
        *final,
    ]
    outputs = (*loop.kept, *(loop.nexts[number] for number in step.finals))
    writer.kernel = replace(kernel, outputs=outputs)
    comment = "One launch for all steps of the loop: its state stays in registers."
    return whole_kernel(writer, name, lines, (Share(kernel.size, threads),), (threads, 1, 1), comment=comment)
