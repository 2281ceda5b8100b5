"""Memory of one arm on a GPU: the arena in which the worker's torch allocates, the slots of its inputs, reading both.

Tensors here are the judge's own, over memory that it made (`cudal1_worker.vmm`); nothing of a worker is executed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire
from cudal1_worker import vmm
from cudal1_worker.masks import KEY_WORDS

from cudal1_env.judge.device.base import ArmMemory, Contract, Needs, Output, Staging, check_holes
from cudal1_env.judge.device.cuda.copies import Batch, Places
from cudal1_env.judge.device.reading import Plan
from cudal1_env.judge.device.tensors import Expected

if TYPE_CHECKING:
    from cudal1_env.judge.device.cuda.device import CudaDevice

Tensor = Any
"""A torch tensor on the GPU."""

_SAMPLE_BYTES = 1 << 20
"""Pinned memory of the host for the samples of a call's outputs."""
_ARENA_BYTES = 1 << 30
"""Least size of an arena, and of its room for copies of outputs."""
_ALIGNING_BYTES = 512 * wire.MAX_OUTPUTS
"""What the copies of a call's outputs need beside their sizes, since each begins at a multiple of 512 bytes."""
_ARENA_SHARE = 1 / 16
"""Most of the GPU's memory that an arena takes for what a call needs beside its outputs."""
_MASKED_BYTES = 512 << 20
"""Memory for the masked inputs of a chain; two sets of any size have room."""
_MAX_MASKED = 36
"""Most sets of a chain, those of its untimed calls among them."""


def masked_blocks(input_bytes: int) -> int:
    """How many sets of inputs lie masked in an arm's memory."""
    return max(2, min(_MAX_MASKED, _MASKED_BYTES // input_bytes))


@dataclass(frozen=True)
class ArenaSizes:
    """How large an arena is."""

    needs: Needs
    total_bytes: int

    @property
    def own_bytes(self) -> int:
        """What torch's allocator may have. Outputs that do not fit lie elsewhere, and are copied call by call.

        Outputs of two calls, since one's are there until the next one's are, and twice what a call needs, within a
        share of the GPU: the allocator keeps blocks of several sizes.
        """
        work = min(2 * self.needs.work_bytes, int(_ARENA_SHARE * self.total_bytes))
        return vmm.rounded(max(_ARENA_BYTES, 2 * self.needs.output_bytes + work))

    @property
    def copies_bytes(self) -> int:
        """Room for copies of a call's outputs."""
        return vmm.rounded(max(_ARENA_BYTES, self.needs.output_bytes + _ALIGNING_BYTES))


class CudaBlock:
    """Device memory of the judge that another process can map."""

    all_bytes: ClassVar[int] = 0
    """Of all blocks that this process has made and not given back."""
    _counting: ClassVar[threading.Lock] = threading.Lock()
    """Several threads make blocks and give them back."""

    def __init__(self, size_bytes: int) -> None:
        self._mapping = vmm.Mapping.create(size_bytes, 0)
        self._count(self._mapping.size_bytes)
        self.size_bytes = self._mapping.size_bytes
        self.address = self._mapping.address
        self.bytes: Tensor = self._mapping.tensor()
        self.fd = self._mapping.export()

    def close(self) -> None:
        """Give it back. Copies from it that are under way end first: unmapping does not wait for them."""
        if self.fd >= 0:
            import torch

            torch.cuda.synchronize()  # in whichever thread this is
            os.close(self.fd)
            self.fd = -1
            del self.bytes
            self._mapping.close()
            self._count(-self.size_bytes)

    @classmethod
    def _count(cls, size_bytes: int) -> None:
        with cls._counting:
            cls.all_bytes += size_bytes


class CudaMemory(ArmMemory):
    """Memory of one arm on a GPU: the arena in which the worker's torch allocates, and the slots of its inputs."""

    def __init__(self, device: CudaDevice, input_bytes: int, sizes: ArenaSizes) -> None:
        import torch

        self._torch: Any = torch
        self._device = device
        self._copies = device.copies
        self._input_bytes = input_bytes
        self._stride = vmm.rounded(input_bytes)
        self._copies_bytes = sizes.copies_bytes
        self._base = 0
        self._host: Tensor = torch.empty(_SAMPLE_BYTES, dtype=torch.uint8, pin_memory=True)
        self._read: npt.NDArray[np.uint8] = self._host.numpy()
        with contextlib.ExitStack() as made:
            self._arena = made.enter_context(contextlib.closing(CudaBlock(sizes.own_bytes + self._copies_bytes)))
            # The slots of inputs, and behind them room for masked ones.
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
        """Take the address at which the worker says that it mapped the arena."""
        base = answer.get("arena")
        self._base = base if isinstance(base, int) and 0 <= base < 1 << 63 else 0

    def put(self, slot: int, inputs: Tensor) -> None:
        self._copies.copy_one(self._slot(slot).data_ptr(), inputs.data_ptr(), self._input_bytes)

    def stage(self, calls: Sequence[Staging]) -> list[list[int]]:
        """Lay down the inputs of a chain, each under a mask of its own, and lay out what is read of the outputs.

        Every masked block is written, also those that no call of this chain needs: a worker that saw which blocks
        changed would know the chain's length.
        """
        size, count = self._input_bytes, masked_blocks(self._input_bytes)
        begin = self._slots.address + self._stride * wire.SLOTS
        keys = np.frombuffer(os.urandom(8 * KEY_WORDS * count), dtype=np.uint64).reshape(-1, KEY_WORDS).tolist()
        for number, key in enumerate(keys):
            source = calls[min(number, len(calls) - 1)].inputs
            self._device.masks.apply(source.data_ptr(), begin + size * number, size, key)
        for one in calls:
            one.plan.prepared = self._reading(one.plan)
        self._torch.cuda.synchronize()
        return [[number, *key] for number, key in enumerate(keys[: len(calls)])]

    def _slot(self, number: int) -> Tensor:
        return self._slots.bytes[self._stride * number : self._stride * number + self._input_bytes]

    def intact(self, slot: int, inputs: Tensor, address: int) -> bool:
        return bool(self._torch.equal(self._slot(slot), inputs))

    def read(self, plan: Plan, outputs: Sequence[Output]) -> npt.NDArray[np.uint8]:
        batch = plan.prepared if isinstance(plan.prepared, Batch) else self._reading(plan)
        begins = [self._arena.address + self._start(one) for one in outputs]
        np.add(plan.offsets, begins[0] if len(begins) == 1 else _places(begins)[plan.which], out=batch.sources)
        self._copies.run(batch)
        return self._read[: plan.size_bytes].copy()

    def _reading(self, plan: Plan) -> Batch:
        """Lay out the copies of a plan but for the addresses from which they come."""
        assert plan.size_bytes <= _SAMPLE_BYTES, "more samples than there is room for"
        return Batch(plan.starts + np.uint64(self._host.data_ptr()), np.zeros_like(plan.sizes), plan.sizes)

    def whole(self, output: Output) -> Tensor:
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
        check_holes(output)
        start = self._start(output)
        if start % want.item_bytes:
            raise Contract("expected outputs at an address that is a multiple of their elements' size")
        span = self._arena.bytes[start : start + output.span_bytes]
        if want.dtype != "bool":
            span = span.view(getattr(self._torch, want.dtype))
        return span.as_strided(want.shape, output.strides)

    def _start(self, output: Output) -> int:
        """Offset of an output in the arena; 0 for one without elements, which lies anywhere."""
        if not output.expected.size:
            return 0
        start = output.address - self._base
        if not 0 <= start <= self._arena.size_bytes - output.span_bytes:
            raise Contract("expected outputs in memory that torch allocated, they lie elsewhere")
        return start

    def close(self) -> None:
        self._made.close()


def _places(numbers: Sequence[int] | Places) -> Places:
    return np.asarray(numbers, dtype=np.uint64)
