"""What an arm does differently on a CPU: inputs lie in sealed files that are mapped."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Sequence
from typing import Any

import torch

from cudal1_worker import protocol as wire

_PLUGS = 6
"""Blocks that are taken from the heap before a call; every other one is given back at once."""
_LARGEST_PLUG_BYTES = 16 << 20
_frombuffer, _empty = torch.frombuffer, torch.empty


class CpuSide:
    """An arm's memory on a CPU.

    Args:
        message: `bytes` of each block in which calls find their inputs.
        fds: The blocks, which are mapped read-only.
    """

    start = 0
    """Outputs lie anywhere; there is no arena."""

    def __init__(self, message: wire.Message, fds: list[int]) -> None:
        self.size_bytes = message["bytes"]
        self._fds = [os.dup(fd) for fd in fds]
        self.slots = [self._mapped(fd, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ) for fd in fds]
        self.plugs: list[torch.Tensor] = []
        self.random = random.Random()

    def place(self, model: Any) -> Any:
        """Return the model where it is."""
        return model

    def untimed_block(self, message: wire.Message) -> torch.Tensor:
        """Return the block of an untimed call: read-only as in timed calls, or a private and writable mapping of it."""
        if message["writable"]:
            return self._mapped(self._fds[message["slot"]], mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        return self.slots[message["slot"]]

    def _mapped(self, fd: int, flags: int, prot: int) -> torch.Tensor:
        return _frombuffer(mmap.mmap(fd, self.size_bytes, flags=flags, prot=prot), dtype=torch.uint8)

    def receive(self, slot: int, control: Sequence[int]) -> None:
        """The inputs of a timed call are in their block."""

    def begin(self) -> None:
        """Change which blocks of the heap are free.

        Where a process allocates a hundred times, chance decides early how many blocks it then uses in calls, and so
        how much of them a cache holds: that alone made one program 10 % faster than its copy, for as long as both
        lived. Chance decides anew for each call, so that it is seen as noise.
        """
        largest = min(self.size_bytes, _LARGEST_PLUG_BYTES)
        sizes = [int(largest * self.random.uniform(0.1, 1.0)) for _ in range(_PLUGS)]
        self.plugs = [_empty(size, dtype=torch.uint8) for size in sizes][::2]

    def finish(self) -> None:
        """Nothing runs behind a call's back."""

    def reachable(self, tensor: torch.Tensor) -> bool:
        """Outputs can be read wherever they lie."""
        return True

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in memory of its own."""
        return tensor.clone()
