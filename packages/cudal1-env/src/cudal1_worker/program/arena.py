"""Divides an arm's GPU memory: pieces for torch's allocator, and copies of outputs."""

from __future__ import annotations

import torch

from cudal1_worker.vmm import driver

_ALIGNMENT = 512


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Arena:
    """First-fit allocator over an address range, called rarely by torch's caching allocator.

    The driver serves requests that do not fit, so that the program runs anyway.
    """

    def __init__(self, start: int, size_bytes: int) -> None:
        self.start, self.end = start, start + size_bytes
        self._free = [(start, size_bytes)]

    def holds(self, address: int) -> bool:
        """Return whether an address is in the arena."""
        return self.start <= address < self.end

    def allocate(self, size: int, device: int, stream: int | None) -> int:
        """Return the address of `size` bytes, or 0."""
        size = _aligned(size)
        for place, (start, room) in enumerate(self._free):
            if room >= size:
                self._free[place : place + 1] = [(start + size, room - size)] if room > size else []
                return start
        status, address = driver.cuMemAlloc(size)
        return int(address) if status == driver.CUresult.CUDA_SUCCESS else 0

    def free(self, address: int, size: int, device: int, stream: int | None) -> None:
        """Free a piece."""
        if not self.holds(address):
            driver.cuMemFree(address)
            return
        self._free.append((address, _aligned(size)))
        self._free.sort()
        joined: list[tuple[int, int]] = []
        for start, room in self._free:
            if joined and joined[-1][0] + joined[-1][1] == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((start, room))
        self._free = joined


class Copies:
    """Memory for copies of outputs, allocated in sequence and freed together.

    Args:
        room: The memory as bytes, shape (n,).
    """

    def __init__(self, room: torch.Tensor) -> None:
        self._room = room
        self._end = 0

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy, or the tensor itself if it does not fit."""
        size = tensor.numel() * tensor.element_size()
        begin, end = self._end, self._end + _aligned(size)
        if end > self._room.numel():
            return tensor
        self._end = end
        return self._room[begin : begin + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def forget(self) -> None:
        """Free all copies."""
        self._end = 0
