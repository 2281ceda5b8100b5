"""An arm's memory on a GPU: torch allocates in an arena that the judge can read; inputs are in slots.

Outputs outside the arena (from a program's own allocator) are copied into a reserved part of it, on the program's own
time.
"""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cudal1_worker import protocol as wire
from cudal1_worker import vmm
from cudal1_worker.arithmetic import allow_tf32
from cudal1_worker.masks import KEY_WORDS, Masks
from cudal1_worker.program.arena import Arena, Copies
from cudal1_worker.program.pools import Pools

_synchronize = torch._C._cuda_synchronize  # does not look up the device each time
_data_ptr = torch.Tensor.data_ptr
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class CudaSide:
    """An arm's memory on a GPU.

    Args:
        message: `arena_bytes`, the last `copies_bytes` of which are for copies of outputs; `tf32`; `masks`; `bytes` of
            an input set; `stride` between the slots; number of `masked` sets after the slots.
        fds: The arena, and the memory of inputs.
    """

    def __init__(self, message: wire.Message, fds: list[int]) -> None:
        allow_tf32(message["tf32"])
        torch.zeros(1, device="cuda")  # creates the context
        self._memory = vmm.Mapping.take(fds[0], message["arena_bytes"], 0)
        whole, room = self._memory.tensor(), message["copies_bytes"]
        self._copies = Copies(whole[message["arena_bytes"] - room : message["arena_bytes"]])
        self.start = self._memory.address
        self.arena = Arena(self.start, message["arena_bytes"] - room)
        self._callbacks = (_ALLOCATE(self.arena.allocate), _FREE(self.arena.free))
        pointers = [ctypes.cast(callback, ctypes.c_void_p).value or 0 for callback in self._callbacks]
        self._pools = Pools(torch._C._cuda_customAllocator(*pointers))
        self._pools.use()
        self._masks = Masks(base64.b64decode(message["masks"]))
        stride, count, size = message["stride"], wire.SLOTS, message["bytes"]
        self._slot_memory = vmm.Mapping.take(fds[1], stride * count + size * message["masked"], 0)
        whole, begin = self._slot_memory.tensor(), self._slot_memory.address
        self.slots = [whole[stride * k : stride * k + size] for k in range(count)]
        self._unmask: list[list[Callable[[Sequence[int]], None]]] = [
            [self._masks.prepared(begin + stride * count + size * k, _data_ptr(slot), size) for slot in self.slots]
            for k in range(message["masked"])
        ]
        self._unmask[0][0]((0,) * KEY_WORDS)  # loads the kernel

    def place(self, model: Any) -> Any:
        """Move a module to the GPU."""
        return model.to("cuda") if isinstance(model, torch.nn.Module) else model

    def untimed_block(self, message: wire.Message) -> torch.Tensor:
        """Return the slot that the judge has filled."""
        return self.slots[message["slot"]]

    def receive(self, slot: int, control: Sequence[int]) -> None:
        """Unmask the inputs of a timed call into their slot, and wait for completion."""
        self._unmask[control[wire.KEY]][slot](control[wire.KEY + 1 : wire.KEY + 1 + KEY_WORDS])
        _synchronize()  # a program's own streams do not wait for it

    def begin(self) -> None:
        """Free the copies of the last call's outputs; the judge has read them before it released this call."""
        self._copies.forget()

    def finish(self) -> None:
        """Wait for everything that runs on the GPU, on any stream."""
        _synchronize()

    def reachable(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor needs no copy: the judge can read it in place, or it is not on the GPU."""
        return not tensor.is_cuda or not tensor.numel() or self.arena.holds(_data_ptr(tensor))

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor into memory that the judge can read; return the tensor itself if it does not fit."""
        return self._copies.take(tensor)
