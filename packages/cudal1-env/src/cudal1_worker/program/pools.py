"""Torch's memory pools over the arena: a main pool, and one for each pool that the program requests.

Torch serves an allocation from the first pool in use that fits the thread or stream, not from the innermost
(`get_pool` in c10/cuda/CUDACachingAllocator.cpp). A CUDA graph must allocate from its own pool during capture, because
each replay writes there. So the main pool is suspended while another pool is in use. Graph pools are in the arena, too,
so that the judge can read a graph's outputs in place.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.cuda.graphs
import torch.cuda.memory


class Pools:
    """The pools of one worker; `use` replaces torch's pool functions with this object's."""

    def __init__(self, allocator: Any) -> None:
        self._allocator = allocator
        self._main = torch.cuda.MemPool(allocator)
        self._named: list[Any] = []  # never freed: a graph's pool must live as long as the graph
        self._device = torch.cuda.current_device()
        self._thread = threading.get_ident()
        self._others = 0
        self._begin = torch._C._cuda_beginAllocateCurrentThreadToPool
        self._end = torch._C._cuda_endAllocateToPool
        self._release = torch._C._cuda_releasePool

    def use(self) -> None:
        """Serve this thread's allocations from the arena from now on."""
        self._begin(self._device, self._main.id)
        begin, end = self._wrapped(self._begin, self._end)
        modules: tuple[Any, ...] = (torch._C, torch.cuda.memory)
        for module in modules:
            module._cuda_beginAllocateCurrentThreadToPool, module._cuda_endAllocateToPool = begin, end
        graph: Any = torch.cuda.graphs.CUDAGraph
        capture, capture_end = self._wrapped(graph.capture_begin, graph.capture_end)

        def capture_begin(one: Any, pool: Any = None, *arguments: Any, **named: Any) -> None:
            capture(one, self.named() if pool is None else pool, *arguments, **named)

        graph.capture_begin, graph.capture_end = capture_begin, capture_end
        modules = (torch.cuda, torch.cuda.graphs)
        for module in modules:
            module.graph_pool_handle = self.named

    def named(self) -> Any:
        """Return the id of a new pool over the arena, for graphs."""
        self._named.append(torch.cuda.MemPool(self._allocator))
        return self._named[-1].id

    def _wrapped(self, begin: Any, end: Any) -> tuple[Any, Any]:
        """Wrap two functions so that the main pool is suspended from the first to the second."""

        def stepping_aside(*arguments: Any, **named: Any) -> Any:
            self._aside()
            try:
                return begin(*arguments, **named)
            except BaseException:
                self._back()
                raise

        def coming_back(*arguments: Any, **named: Any) -> Any:
            try:
                return end(*arguments, **named)
            finally:
                self._back()

        return stepping_aside, coming_back

    def _aside(self) -> None:
        if threading.get_ident() != self._thread:
            return
        if self._others == 0:
            self._end(self._device, self._main.id)
            self._release(self._device, self._main.id)
        self._others += 1

    def _back(self) -> None:
        if threading.get_ident() != self._thread:
            return
        self._others -= 1
        if self._others == 0:
            self._begin(self._device, self._main.id)
