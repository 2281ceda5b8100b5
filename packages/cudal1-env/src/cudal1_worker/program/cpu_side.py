"""An arm's memory on a CPU: inputs are in mapped, sealed files."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Sequence
from typing import Any

import torch

from cudal1_worker import protocol as wire

_PLUGS = 6
"""Blocks allocated on the heap before a call; every other one is freed at once."""
_LARGEST_PLUG_BYTES = 16 << 20
_frombuffer, _empty = torch.frombuffer, torch.empty


class CpuSide:
    """An arm's memory on a CPU.

    Args:
        message: `bytes`, the size of each input slot.
        fds: Files of the slots, which are mapped read-only.
    """

    start = 0
    """There is no arena; outputs may be anywhere."""

    def __init__(self, message: wire.Message, fds: list[int]) -> None:
        self.size_bytes = message["bytes"]
        self._fds = [os.dup(fd) for fd in fds]
        self.slots = [self._mapped(fd, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ) for fd in fds]
        self.plugs: list[torch.Tensor] = []
        self.random = random.Random()

    def place(self, model: Any) -> Any:
        """Return the model unchanged."""
        return model

    def untimed_block(self, message: wire.Message) -> torch.Tensor:
        """Return the slot of an untimed call: read-only as in timed calls, or a private writable mapping of it."""
        if message["writable"]:
            return self._mapped(self._fds[message["slot"]], mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        return self.slots[message["slot"]]

    def _mapped(self, fd: int, flags: int, prot: int) -> torch.Tensor:
        return _frombuffer(mmap.mmap(fd, self.size_bytes, flags=flags, prot=prot), dtype=torch.uint8)

    def receive(self, slot: int, control: Sequence[int]) -> None:
        """Do nothing: the inputs of a timed call are already in their slot."""

    def begin(self) -> None:
        """Randomize which heap blocks are free.

        Early allocations determine by chance how many heap blocks a process uses in its calls, and so how well they fit
        a cache. This alone made one program 10 % faster than its copy while both lived. A new random layout for each
        call turns this bias into noise.
        """
        largest = min(self.size_bytes, _LARGEST_PLUG_BYTES)
        sizes = [int(largest * self.random.uniform(0.1, 1.0)) for _ in range(_PLUGS)]
        self.plugs = [_empty(size, dtype=torch.uint8) for size in sizes][::2]

    def finish(self) -> None:
        """Do nothing: no work of a call outlives it."""

    def reachable(self, tensor: torch.Tensor) -> bool:
        """Return True: the judge can read outputs at any address."""
        return True

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in new memory."""
        return tensor.clone()
