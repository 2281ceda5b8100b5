"""Who gets which part of an arm's memory on a GPU: bookkeeping only, over memory of the host."""

from __future__ import annotations

import pytest
import torch
from cudal1_env.judge.device.cuda.memory import arena_sizes
from cudal1_worker.program import arena
from cudal1_worker.program.arena import Arena, Copies
from hypothesis import given
from hypothesis import strategies as st

START, SIZE = 1 << 30, 1 << 20


class Driver:
    """Gives out memory far away, as the driver does where the arena is full."""

    class CUresult:
        CUDA_SUCCESS = 0

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.next = 1 << 40

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        self.next += 1 << 30
        self.held[self.next] = size
        return 0, self.next

    def cuMemFree(self, address: int) -> tuple[int]:
        del self.held[address]
        return (0,)


@given(st.lists(st.tuples(st.integers(1, SIZE), st.integers(0, 7)), max_size=40))
def test_pieces_never_overlap_and_come_back(steps: list[tuple[int, int]]) -> None:
    driver = Driver()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "driver", driver)
        one = Arena(START, SIZE)
        held: dict[int, int] = {}
        for size, back in steps:
            address = one.allocate(size, 0, None)
            assert one.holds(address) or driver.held[address] >= size
            assert all(address + size <= other or other + room <= address for other, room in held.items())
            held[address] = size
            for other in list(held)[:back]:
                one.free(other, held.pop(other), 0, None)
        for address, size in held.items():
            one.free(address, size, 0, None)
        assert not driver.held
        assert one.allocate(SIZE, 0, None) == START


def test_copies_of_one_sample_do_not_overwrite_each_other() -> None:
    copies = Copies(torch.zeros(4096, dtype=torch.uint8))
    copies.take(torch.full((100,), 9.0))
    copies.forget()
    for turn in range(3):
        copies.forget()
        made = [copies.take(torch.full((100,), float(-turn - k))) for k in range(4)]
        assert [float(one[0]) for one in made] == [float(-turn - k) for k in range(4)]


def test_what_does_not_fit_stays_where_it_is() -> None:
    copies = Copies(torch.zeros(1024, dtype=torch.uint8))
    large = torch.ones(1000)
    assert copies.take(large) is large


GIB = 1 << 30


@pytest.mark.parametrize(
    ("output", "work", "own", "copies"),
    [
        (1 << 10, 1 << 20, GIB, GIB),
        (GIB, 0, 2 * GIB, GIB),
        (3 * GIB, 0, 6 * GIB, 3 * GIB),
        (1 << 12, GIB, 2 * GIB, GIB),
        (1 << 12, 1 << 40, 8 * GIB, GIB),
    ],
    ids=[
        "small",
        "large outputs",
        "larger outputs",
        "large work",
        "larger than its share",
    ],
)
def test_an_arena_holds_what_the_reference_needs(output: int, work: int, own: int, copies: int) -> None:
    sizes = arena_sizes(output, work, 128 * GIB)
    assert own <= sizes[0] <= own + (4 << 20)
    assert copies <= sizes[1] <= copies + (4 << 20)
