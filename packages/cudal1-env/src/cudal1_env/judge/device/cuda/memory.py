"""Memory of one arm on a GPU: the arena for the worker's torch, the slots of its inputs, and access to both.

All tensors here are the judge's own, over memory that it allocated (`cudal1_worker.vmm`); no worker code runs.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire
from cudal1_worker import vmm
from cudal1_worker.masks import KEY_WORDS

from cudal1_env.judge.device.base import ArmMemory, Contract, Output, address_of
from cudal1_env.judge.device.cuda.copies import Batch
from cudal1_env.judge.device.reading import Plan
from cudal1_env.judge.device.tensors import Expected

if TYPE_CHECKING:
    from cudal1_env.judge.device.cuda.device import CudaDevice

Tensor = Any
"""A torch tensor on the GPU."""

_SAMPLE_BYTES = 1 << 20
"""Pinned host memory for the elements read from a call's outputs."""
_ARENA_BYTES = 1 << 30
"""Minimum size of an arena, and of its part for copies of outputs."""
_ALIGNING_BYTES = 512 * wire.MAX_OUTPUTS
"""Padding for the copies of a call's outputs, each of which starts at a multiple of 512 bytes."""
_ARENA_SHARE = 1 / 16
"""Maximum share of the GPU's memory for an arena's working memory, in addition to outputs."""
_MASKED_BYTES = 512 << 20
"""Memory for the masked inputs of a chain; at least two sets always fit."""
_MAX_MASKED = 36
"""Maximum sets of a chain, including its untimed calls."""


def masked_blocks(input_bytes: int) -> int:
    """Return the number of masked input sets in an arm's memory."""
    return max(2, min(_MAX_MASKED, _MASKED_BYTES // input_bytes))


def arena_sizes(output_bytes: int, work_bytes: int, total_bytes: int) -> tuple[int, int]:
    """Return the memory of an arena for torch's allocator, and for copies of a call's outputs.

    The allocator has room for the outputs of two calls, because the old ones live until the new ones exist, and for
    twice a call's working memory, up to a share of the GPU, because it keeps blocks of several sizes. Outputs that do
    not fit are placed elsewhere and copied in each call.

    Args:
        output_bytes: Size of the outputs of one call.
        work_bytes: Peak memory of a call of the reference, including outputs.
        total_bytes: Memory of the GPU.
    """
    work_bytes = min(2 * work_bytes, int(_ARENA_SHARE * total_bytes))
    copies_bytes = max(_ARENA_BYTES, output_bytes + _ALIGNING_BYTES)
    return vmm.rounded(max(_ARENA_BYTES, 2 * output_bytes + work_bytes)), vmm.rounded(copies_bytes)


class CudaBlock:
    """Device memory of the judge that another process can map."""

    def __init__(self, size_bytes: int) -> None:
        self._mapping = vmm.Mapping.create(size_bytes, 0)
        self.size_bytes = self._mapping.size_bytes
        self.address = self._mapping.address
        self.bytes: Tensor = self._mapping.tensor()
        self.fd = self._mapping.export()

    def close(self) -> None:
        """Free the memory once pending copies have ended; unmapping does not wait for them."""
        if self.fd >= 0:
            import torch

            torch.cuda.synchronize()
            os.close(self.fd)
            self.fd = -1
            del self.bytes
            self._mapping.close()


class CudaMemory(ArmMemory):
    """Memory of one arm on a GPU: the arena for the worker's torch, and the slots of its inputs."""

    def __init__(self, device: CudaDevice, input_bytes: int, own_bytes: int, copies_bytes: int) -> None:
        import torch

        self._torch: Any = torch
        self._device = device
        self._copies = device.copies
        self._input_bytes = input_bytes
        self._stride = vmm.rounded(input_bytes)
        self._copies_bytes = copies_bytes
        self._base = 0
        self._host: Tensor = torch.empty(_SAMPLE_BYTES, dtype=torch.uint8, pin_memory=True)
        self._read: npt.NDArray[np.uint8] = self._host.numpy()
        with contextlib.ExitStack() as made:
            self._arena = made.enter_context(contextlib.closing(CudaBlock(own_bytes + copies_bytes)))
            # The slots of inputs, followed by the masked sets.
            slots_bytes = self._stride * wire.SLOTS + input_bytes * masked_blocks(input_bytes)
            self._slots = made.enter_context(contextlib.closing(CudaBlock(slots_bytes)))
            self._made = made.pop_all()

    def begin(self) -> tuple[wire.Message, list[int]]:
        message = {
            "tf32": self._device.tf32,
            "masks": base64.b64encode(self._device.masks_binary).decode(),
            "arena_bytes": self._arena.size_bytes,
            "copies_bytes": self._copies_bytes,
            "bytes": self._input_bytes,
            "stride": self._stride,
            "masked": masked_blocks(self._input_bytes),
        }
        return message, [self._arena.fd, self._slots.fd]

    def began(self, answer: wire.Message) -> None:
        """Take the address at which the worker reports to have mapped the arena."""
        self._base = address_of(answer.get("arena"))

    def put(self, slot: int, inputs: Tensor) -> None:
        self._copies.copy_one(self._slot(slot).data_ptr(), inputs.data_ptr(), self._input_bytes)

    def stage(self, calls: Sequence[tuple[Tensor, Plan]]) -> list[list[int]]:
        """Write the inputs of a chain, each set under its own mask, and prepare the reading of the outputs.

        Every masked block is written, even those that this chain does not use: otherwise a worker could infer the
        chain's length from the blocks that changed.
        """
        size, count = self._input_bytes, masked_blocks(self._input_bytes)
        begin = self._slots.address + self._stride * wire.SLOTS
        keys = np.frombuffer(os.urandom(8 * KEY_WORDS * count), dtype=np.uint64).reshape(-1, KEY_WORDS).tolist()
        for number, key in enumerate(keys):
            source, _ = calls[min(number, len(calls) - 1)]
            self._device.masks.prepared(source.data_ptr(), begin + size * number, size)(key)
        for _, plan in calls:
            plan.prepared = self._reading(plan)
        self._torch.cuda.synchronize()
        return [[number, *key] for number, key in enumerate(keys[: len(calls)])]

    def _slot(self, number: int) -> Tensor:
        return self._slots.bytes[self._stride * number : self._stride * number + self._input_bytes]

    def intact(self, slot: int, inputs: Tensor, address: int) -> bool:
        return bool(self._torch.equal(self._slot(slot), inputs))

    def read(self, plan: Plan, outputs: Sequence[Output]) -> npt.NDArray[np.uint8]:
        batch = plan.prepared if isinstance(plan.prepared, Batch) else self._reading(plan)
        begins = [self._arena.address + self._start(one) for one in outputs]
        np.add(
            plan.offsets,
            begins[0] if len(begins) == 1 else np.array(begins, dtype=np.uint64)[plan.which],
            out=batch.sources,
        )
        self._copies.run(batch)
        return self._read[: plan.size_bytes].copy()

    def _reading(self, plan: Plan) -> Batch:
        """Prepare the copies of a plan, except for their source addresses."""
        assert plan.size_bytes <= _SAMPLE_BYTES, "more samples than there is room for"
        return Batch(plan.starts + np.uint64(self._host.data_ptr()), np.zeros_like(plan.sizes), plan.sizes)

    def whole(self, outputs: Sequence[Output]) -> list[Tensor]:
        return [self._whole(output) for output in outputs]

    def _whole(self, output: Output) -> Tensor:
        if not output.expected.size:
            return self._torch.empty(0, dtype=getattr(self._torch, output.expected.dtype), device="cuda")
        return self._elements(output).reshape(-1).clone()

    def overwrite(self, outputs: Sequence[Output]) -> None:
        """Overwrite exactly the elements of outputs, with random bytes."""
        for output in outputs:
            if output.expected.aliases or not output.expected.size:
                continue
            elements = self._elements(output)
            if output.expected.dtype == "bool":
                elements.copy_(self._torch.randint(2, output.expected.shape, device="cuda"))
            else:
                elements.copy_(self._random_elements(output.expected))
        self._torch.cuda.synchronize()

    def _random_elements(self, expected: Expected) -> Tensor:
        size_bytes = expected.size * expected.item_bytes
        noise = self._torch.randint(256, (size_bytes,), dtype=self._torch.uint8, device="cuda")
        return noise.view(getattr(self._torch, expected.dtype)).view(expected.shape)

    def _elements(self, output: Output) -> Tensor:
        """View the elements of an output in the arena, in its shape; booleans as bytes."""
        want = output.expected
        start = self._start(output)
        if start % want.item_bytes:
            raise Contract("expected outputs at an address that is a multiple of their elements' size")
        span = self._arena.bytes[start : start + output.span_bytes]
        if want.dtype != "bool":
            span = span.view(getattr(self._torch, want.dtype))
        return span.as_strided(want.shape, output.strides)

    def _start(self, output: Output) -> int:
        """Return an output's offset in the arena; 0 for an empty output, which may have any address."""
        if not output.expected.size:
            return 0
        start = output.address - self._base
        if not 0 <= start <= self._arena.size_bytes - output.span_bytes:
            raise Contract("expected outputs in memory that torch allocated, they lie elsewhere")
        return start

    def close(self) -> None:
        self._made.close()
