"""What an arm does differently on a GPU: torch allocates in an arena that the judge can read, inputs lie in its slots.

Outputs that a program made elsewhere (with an allocator of its own), or that its next call would overwrite, are copied
into a part of the arena that is kept for copies, on the program's own time.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from cudal1_worker import layout, vmm
from cudal1_worker import protocol as wire
from cudal1_worker.arena import Arena, Copies
from cudal1_worker.arithmetic import allow_tf32
from cudal1_worker.pools import Pools
from cudal1_worker.vmm import driver

_synchronize = torch.cuda.synchronize
_data_ptr = torch.Tensor.data_ptr
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class CudaSide:
    """An arm's memory on a GPU.

    Args:
        message: `arena_bytes`, of them `copies_bytes` at the end for copies of outputs, `tf32`.
        fds: The arena.
    """

    def __init__(self, message: wire.Message, fds: list[int]) -> None:
        allow_tf32(message["tf32"])
        self._dummy = torch.zeros(1, device="cuda")  # makes the context
        self._dummy.add_(1)  # loads the kernel: later, behind a closed gate, that would wait for ever
        self._memory = vmm.Mapping.take(fds[0], message["arena_bytes"], 0)
        whole, room = self._memory.tensor(), message["copies_bytes"]
        self._copies = Copies(whole[message["arena_bytes"] - room : message["arena_bytes"]])
        self.start = self._memory.address
        self.arena = Arena(self.start, message["arena_bytes"] - room)
        self._callbacks = (_ALLOCATE(self.arena.allocate), _FREE(self.arena.free))
        pointers = [ctypes.cast(callback, ctypes.c_void_p).value or 0 for callback in self._callbacks]
        self._pools = Pools(torch._C._cuda_customAllocator(*pointers))
        self._pools.use()
        self.slots: list[torch.Tensor] = []
        self._slot_memory: vmm.Mapping | None = None
        self._gate = 0

    def place(self, model: Any) -> Any:
        """Move a module to the GPU."""
        return model.to("cuda") if isinstance(model, torch.nn.Module) else model

    def learn_slots(self, message: wire.Message, fds: list[int]) -> None:
        """Map the blocks in which calls find their inputs: they lie in one allocation, `stride` bytes apart."""
        self.slots = []
        if self._slot_memory is not None:
            _synchronize()
            self._slot_memory.close()
        stride, count = message["stride"], message["slots"]
        self._slot_memory = vmm.Mapping.take(fds[0], stride * count + wire.GATE_BYTES, 0)
        whole = self._slot_memory.tensor()
        self._gate = self._slot_memory.address + stride * count
        self.slots = [whole[stride * k : stride * k + message["bytes"]] for k in range(count)]

    def untimed_block(self, message: wire.Message, fds: list[int]) -> torch.Tensor:
        """Return the slot that the judge has filled."""
        self._copies.forget()
        return self.slots[message["slot"]]

    def hold(self) -> None:
        """Keep the copies that were made of the last untimed call's outputs for good: empty turns return them."""
        self._copies.hold()

    def wake(self, turn: int) -> None:
        """Forget the last turn's copies; queue a kernel that waits for the judge's word, and do not wait for it.

        When the judge has emptied the caches, it lets that kernel run, so that the GPU holds this process's context
        before the clock starts: switching to it takes longer than a short call.
        """
        self._copies.forget()
        stream = torch.cuda.current_stream().cuda_stream
        vmm.check(driver.cuStreamWaitValue32(stream, self._gate, turn, 0))  # until it is at least `turn`
        self._dummy.add_(1)
        vmm.check(driver.cuStreamWriteValue32(stream, self._gate + wire.GATE_PASSED, turn, 0))

    def touch(self) -> None:
        """Start the smallest kernel, for an empty turn: what starting and awaiting the first one takes."""
        self._dummy.add_(1)

    def finish(self) -> None:
        """Wait for everything that runs on the GPU, on any stream."""
        _synchronize()

    def keep(self, outputs: Any, *, reused: bool) -> Any:
        """Return outputs that lie in the arena as they are, and that no later call of the turn overwrites."""
        if type(outputs) is torch.Tensor:
            outputs = layout.as_stored(outputs)
            return outputs if not reused and self.arena.holds(_data_ptr(outputs)) else self._copy(outputs)
        leaves = map(layout.as_stored, layout.flatten(outputs))
        return [
            leaf
            if not isinstance(leaf, torch.Tensor) or (not reused and self.arena.holds(_data_ptr(leaf)))
            else self._copy(leaf)
            for leaf in leaves
        ]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to where the judge can read it; what is not on the GPU, or does not fit, stays as it is."""
        if not tensor.is_cuda or not tensor.numel():
            return tensor
        return self._copies.take(tensor)
