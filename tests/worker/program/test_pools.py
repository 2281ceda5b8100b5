"""The worker's memory pools, over a double of torch's allocator: the pool that serves must be the one asked for last.

The double serves from the first pool in use, as torch's does. On a GPU `test_cuda_baselines.py` holds the same.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
import torch
import torch.cuda.graphs
import torch.cuda.memory
from cudal1_worker.program.pools import Pools

Id = tuple[int, int]


class Allocator:
    """What of torch's allocator is needed here."""

    def __init__(self) -> None:
        self.in_use: list[Id] = []
        self.users: dict[Id, int] = {}
        self.numbers = itertools.count(1)

    def begin(self, device: int, pool: Id) -> None:
        assert pool not in self.in_use, "already recording to mempool_id"
        self.users[pool] = self.users.get(pool, 0) + 1
        self.in_use.append(pool)

    def end(self, device: int, pool: Id) -> None:
        self.in_use.remove(pool)

    def release(self, device: int, pool: Id) -> None:
        self.users[pool] -= 1
        assert self.users[pool] >= 0

    @property
    def serves(self) -> Id | None:
        return self.in_use[0] if self.in_use else None


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    one = Allocator()

    class MemPool:
        def __init__(self, over: Any) -> None:
            assert over is one
            self.id = (0, next(one.numbers))
            one.users[self.id] = 1

    class Graph:
        """A graph is captured on a stream, into a pool."""

        def capture_begin(self, pool: Id, *, fails: bool = False) -> None:
            if fails:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.pool = pool
            one.begin(0, pool)

        def capture_end(self) -> None:
            one.end(0, self.pool)

    for module in (torch._C, torch.cuda.memory):
        monkeypatch.setattr(module, "_cuda_beginAllocateCurrentThreadToPool", one.begin)
        monkeypatch.setattr(module, "_cuda_endAllocateToPool", one.end)
        monkeypatch.setattr(module, "_cuda_releasePool", one.release)
    for module in (torch.cuda, torch.cuda.graphs):
        monkeypatch.setattr(module, "CUDAGraph", Graph)
        monkeypatch.setattr(module, "graph_pool_handle", lambda: (9, 9))
    monkeypatch.setattr(torch.cuda, "MemPool", MemPool)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    Pools(one).use()
    return one


ARENA = (0, 1)


def test_a_graph_is_captured_into_a_pool_of_its_own_over_the_arena(allocator: Allocator) -> None:
    assert allocator.serves == ARENA
    graph: Any = torch.cuda.CUDAGraph()
    graph.capture_begin()
    assert allocator.serves == (0, 2)
    graph.capture_end()
    assert allocator.serves == ARENA
    assert allocator.users[ARENA] == 2, "the pool's own, and that it is in use"
    other: Any = torch.cuda.CUDAGraph()
    other.capture_begin(pool=graph.pool)
    assert allocator.serves == graph.pool
    other.capture_end()
    assert allocator.serves == ARENA


def test_a_handle_is_a_pool_over_the_arena(allocator: Allocator) -> None:
    assert torch.cuda.graph_pool_handle() == (0, 2)
    assert torch.cuda.graphs.graph_pool_handle() == (0, 3)


def test_a_pool_inside_a_pool_serves_and_the_arena_comes_back_last(allocator: Allocator) -> None:
    """As torch.compile does: a pool for the thread, in which a graph is captured."""
    mine = (5, 0)
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, mine)  # type: ignore[attr-defined]
    assert allocator.serves == mine
    graph: Any = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=(6, 0))
    assert ARENA not in allocator.in_use
    graph.capture_end()
    assert allocator.in_use == [mine]
    torch._C._cuda_endAllocateToPool(0, mine)  # type: ignore[attr-defined]
    assert allocator.in_use == [ARENA]


def test_a_programs_own_pool_serves(allocator: Allocator) -> None:
    class Mine:
        id = (7, 0)

    with torch.cuda.use_mem_pool(Mine()):  # type: ignore[arg-type]
        assert allocator.serves == Mine.id
    assert allocator.in_use == [ARENA]


def test_a_capture_that_fails_leaves_the_arena_in_use(allocator: Allocator) -> None:
    graph: Any = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capturing"):
        graph.capture_begin(fails=True)
    assert allocator.in_use == [ARENA]
    graph.pool = (8, 0)
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, (4, 0))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="not in list"):
        graph.capture_end()
    assert ARENA in allocator.in_use


def test_another_threads_pools_do_not_touch_the_arena(allocator: Allocator) -> None:
    def other() -> None:
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, (5, 0))  # type: ignore[attr-defined]
        seen.append(allocator.in_use[:])
        torch._C._cuda_endAllocateToPool(0, (5, 0))  # type: ignore[attr-defined]

    seen: list[list[Id]] = []
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [[ARENA, (5, 0)]]
    assert allocator.in_use == [ARENA]
