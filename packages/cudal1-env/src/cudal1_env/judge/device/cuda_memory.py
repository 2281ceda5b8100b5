"""Memory of one arm on a GPU: the arena in which the worker's torch allocates, the slots of its inputs, reading both.

Tensors here are the judge's own, over memory that it made (`cudal1_worker.vmm`); nothing of a worker is executed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire
from cudal1_worker import vmm

from cudal1_env.judge.device.base import Contract, Needs, Output, check_holes
from cudal1_env.judge.device.tensors import Expected, decode

if TYPE_CHECKING:
    from cudal1_env.judge.device.cuda import CudaDevice

Tensor = Any
"""A torch tensor on the GPU."""

_SAMPLE_BYTES = 1 << 20
"""Room for the samples of all outputs of one turn."""
_ARENA_BYTES = 1 << 30
"""Least size of an arena, and of its room for copies of outputs."""
_ALIGNING_BYTES = 512 * wire.MAX_DESCRIPTORS
"""What the copies of a turn need beside their sizes, since each begins at a multiple of 512 bytes."""
_ARENA_SHARE = 1 / 16
"""Most of the GPU's memory that an arena takes for what a call needs beside its outputs."""
STAGED_BYTES = 32 << 20
"""Where a launch's longest turn has inputs up to this size, they go through the host's memory, which leaves the GPU in
the worker's hands."""
_GATE_S = 2e-3


@dataclass(frozen=True)
class ArenaSizes:
    """How large an arena is.

    Args:
        needs: What the arm needs.
        total_bytes: The GPU's memory.
    """

    needs: Needs
    total_bytes: int

    @property
    def own_bytes(self) -> int:
        """What torch's allocator may have. Outputs that do not fit lie elsewhere, and are copied call by call.

        Outputs of a turn (of two calls at least, since one's are there until the next one's are), those of the last
        untimed call, and twice what a call needs, within a share of the GPU: the allocator keeps blocks of several
        sizes.
        """
        work = min(2 * self.needs.work_bytes, int(_ARENA_SHARE * self.total_bytes))
        return vmm.rounded(max(_ARENA_BYTES, self._outputs_of(2) + work))

    @property
    def copies_bytes(self) -> int:
        """Room for copies of outputs: those of a turn, and those of the last untimed call."""
        return vmm.rounded(max(_ARENA_BYTES, self._outputs_of(1) + _ALIGNING_BYTES))

    def _outputs_of(self, least_calls: int) -> int:
        """Outputs of a turn of so many calls or more, and of one call."""
        one, needs = self.needs.output_bytes, self.needs
        return max(least_calls * one, min(needs.calls * one, needs.burst_bytes)) + one


class CudaBlock:
    """Device memory of the judge that another process can map.

    Args:
        size_bytes: Its size.
    """

    all_bytes: ClassVar[int] = 0
    """Of all blocks that this process has made and not given back."""

    def __init__(self, size_bytes: int) -> None:
        self._mapping = vmm.Mapping.create(size_bytes, 0)
        CudaBlock.all_bytes += self._mapping.size_bytes
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
            CudaBlock.all_bytes -= self.size_bytes


class CudaMemory:
    """Memory of one arm on a GPU: the arena in which the worker's torch allocates, and the slots of its inputs.

    Args:
        device: Whose memory it is.
        input_bytes: Size of a set of inputs.
        sizes: Of the arena.
    """

    def __init__(self, device: CudaDevice, input_bytes: int, sizes: ArenaSizes) -> None:
        import torch

        self._torch: Any = torch
        self._device = device
        self.cold = False
        self.most_calls = 1
        self._copies = device.copies
        self._input_bytes = input_bytes
        self._stride = vmm.rounded(input_bytes)
        self._copies_bytes = sizes.copies_bytes
        self._arena = CudaBlock(sizes.own_bytes + self._copies_bytes)
        self._slots: CudaBlock | None = None
        self._gate = 0
        self._base = 0
        self._forms: dict[int, _Form] = {}
        self._plan: _Plan | None = None
        self._host: Tensor = torch.empty(_SAMPLE_BYTES, dtype=torch.uint8, pin_memory=True)

    def begin(self) -> tuple[wire.Message, list[int]]:
        """Hand over the arena."""
        sizes = {"arena_bytes": self._arena.size_bytes, "copies_bytes": self._copies_bytes}
        return {"op": "cuda", "tf32": self._device.tf32, **sizes}, [self._arena.fd]

    def began(self, answer: wire.Message) -> None:
        """Take the address at which the worker says that it mapped the arena."""
        base = answer.get("arena")
        self._base = base if isinstance(base, int) and 0 <= base < 1 << 63 else 0

    def slots(self, count: int) -> tuple[wire.Message, list[int]]:
        """Make slots for inputs."""
        if self._slots is not None:
            self._slots.close()
        number = wire.SLOTS * count
        self._slots = CudaBlock(self._stride * number + wire.GATE_BYTES)
        self._gate = self._slots.address + self._stride * number
        vmm.check(vmm.driver.cuMemsetD8(self._gate, 0, wire.GATE_BYTES))
        return {"bytes": self._input_bytes, "stride": self._stride, "slots": number}, [self._slots.fd]

    @contextlib.contextmanager
    def present(self, inputs: Tensor, *, writable: bool) -> Generator[tuple[wire.Message, list[int]]]:
        """Put the inputs of an untimed call into the first slot."""
        self.fill(0, [inputs])
        yield {"slot": 0}, []

    def fill(self, first: int, inputs: Sequence[Tensor]) -> None:
        """Copy inputs into the slots from `first` on, and wait until they are there."""
        slots = [self._slot(first + number) for number in range(len(inputs))]
        self._copies.copy(_addresses(slots), _addresses(inputs), self._sizes(len(inputs)))

    def supply(self, turn: int, first: int, inputs: Sequence[Tensor], *, watch: bool) -> float | None:
        """Write the inputs of a timed turn and empty the caches; with `watch`, return what others took of the GPU.

        Copies within the GPU put the judge's context in the worker's place, and back again on the judge's clock. So the
        caches are emptied first, then the worker's waiting kernel is let through, which brings its context back, and
        only then inputs come, over the bus from the host's memory (and may lie in the L2 cache). Inputs that are too
        large for that, or must be cold, come by a copy within the GPU after all: calls on large ones take long. What a
        launch's longest turn needs decides for all its turns, because the overhead is learnt from some and taken off
        others.
        """
        device = self._device
        staged = not self.cold and self._input_bytes * max(self.most_calls, len(inputs)) <= STAGED_BYTES
        device.reset()
        if staged:
            self._copies.copy(self._staged(len(inputs)), _addresses(inputs), self._sizes(len(inputs)))
            device.flush()
        self._open_gate(turn)
        with device.watch.watching() if watch else contextlib.nullcontext():
            if staged:
                slots = [self._slot(first + number) for number in range(len(inputs))]
                self._copies.copy(_addresses(slots), self._staged(len(inputs)), self._sizes(len(inputs)))
            else:
                self.fill(first, inputs)
                device.flush()
        return device.watch.taken_s if watch else None

    def _staged(self, count: int) -> npt.NDArray[np.uint64]:
        """Where inputs wait in the host's memory."""
        begin = self._device.stage.data_ptr()
        return _places([begin + self._input_bytes * number for number in range(count)])

    def _sizes(self, count: int) -> npt.NDArray[np.uint64]:
        return _places([self._input_bytes] * count)

    def _open_gate(self, turn: int) -> None:
        """Let the worker's waiting kernel through, and wait until it has run; if it does not, that is its own loss."""
        self._host[:4].view(self._torch.int32)[0] = turn
        word = self._host.data_ptr()
        self._copies.copy_one(self._gate, word, 4)
        passed = self._host[4:8].view(self._torch.int32).numpy()
        passed[0] = 0
        limit = time.perf_counter() + _GATE_S
        while time.perf_counter() < limit:
            self._copies.copy_one(word + 4, self._gate + wire.GATE_PASSED, 4)
            if passed[0] == turn:
                return

    def _slot(self, number: int) -> Tensor:
        assert self._slots is not None
        return self._slots.bytes[self._stride * number : self._stride * number + self._input_bytes]

    def intact(self, inputs: Tensor, address: int) -> bool:
        """Whether the first slot still holds the inputs of the last untimed call."""
        return bool(self._torch.equal(self._slot(0), inputs))

    def expect(self, positions: Sequence[npt.NDArray[np.int64]], expected: tuple[Expected, ...]) -> None:
        """Work out which bytes will be read, as if the outputs' form were that of the call before."""
        width = len(expected)
        forms = [self._forms.get(k % width) for k in range(len(positions))]
        self._plan = None
        if all(form is not None for form in forms):
            outputs = [Output(0, form.strides, expected[k % width]) for k, form in enumerate(forms) if form is not None]
            words = np.array([form.words for form in forms if form is not None])
            self._plan = _Plan(outputs, positions, words, self._host.data_ptr())

    def samples_as_before(self, page: bytes) -> Callable[[], list[npt.NDArray[np.generic]]] | None:
        """Read what `expect` was told, if the outputs differ from those read before in their addresses only."""
        plan = self._plan
        if plan is None or (addresses := plan.addresses(page)) is None:
            return None
        starts = addresses - np.uint64(self._base)  # what lies below wraps around, and so is too large
        if (starts > np.uint64(self._arena.size_bytes) - plan.spans).any():
            return None
        return self._read(plan, starts)

    def samples(
        self, outputs: Sequence[Output], positions: Sequence[npt.NDArray[np.int64]]
    ) -> list[npt.NDArray[np.generic]]:
        """Read the outputs' elements at flat positions, all in one go.

        Raises:
            Contract: The memory that the worker named is not in the arena.
        """
        starts = _places([self._start(output) for output in outputs])
        plan = _Plan(outputs, positions, np.empty((0, 0), dtype=np.uint64), self._host.data_ptr())
        return self._read(plan, starts)()

    def learn(self, page: bytes, outputs: Sequence[Output]) -> None:
        """Remember the form of checked outputs of one call, for `samples_as_before`."""
        rows = _rows(page, len(outputs))
        self._forms = {k: _Form(output.strides, rows[k, 1:].copy()) for k, output in enumerate(outputs)}

    def _read(self, plan: _Plan, starts: npt.NDArray[np.uint64]) -> Callable[[], list[npt.NDArray[np.generic]]]:
        """Copy samples to the host's memory; what is returned sorts them out, before the next are read."""
        assert plan.size_bytes <= _SAMPLE_BYTES, "more samples than there is room for"
        self._copies.copy(plan.targets, plan.sources(self._arena.address, starts), plan.sizes)
        return lambda: plan.split(self._host.numpy())

    def whole(self, output: Output) -> Tensor:
        """Return a copy of a whole output, flat, in C order of its shape.

        Raises:
            Contract: The memory that the worker named is not in the arena, or is not aligned.
        """
        want = output.expected
        dtype = getattr(self._torch, want.dtype)
        if not want.size:
            return self._torch.empty(0, dtype=dtype, device="cuda")
        check_holes(output)
        start = self._start(output)
        if start % want.item_bytes:
            raise Contract("expected outputs at an address that is a multiple of their elements' size")
        span = self._arena.bytes[start : start + output.span_bytes].view(dtype)
        return span.as_strided(want.shape, output.strides).reshape(-1).clone()

    def _start(self, output: Output) -> int:
        """Offset of an output in the arena; 0 for one without elements, which lies anywhere."""
        if not output.expected.size:
            return 0
        start = output.address - self._base
        if not 0 <= start <= self._arena.size_bytes - output.span_bytes:
            raise Contract("expected outputs in memory that torch allocated, they lie elsewhere")
        return start

    def close(self) -> None:
        """Give everything back."""
        self._arena.close()
        if self._slots is not None:
            self._slots.close()


@dataclass(frozen=True)
class _Form:
    """What a descriptor says beside the address."""

    strides: tuple[int, ...]
    words: npt.NDArray[np.uint64]


class _Plan:
    """Which bytes to read for samples of some outputs.

    Args:
        outputs: Their form; the addresses do not matter.
        positions: Flat positions of elements, for each output.
        words: The descriptors without the addresses, shape (outputs, words); for `addresses` only.
        host: Address at which what is read will lie.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        positions: Sequence[npt.NDArray[np.int64]],
        words: npt.NDArray[np.uint64],
        host: int,
    ) -> None:
        counts = [one.size for one in positions]
        self._words = words
        self._dtypes = [output.expected.dtype for output in outputs]
        items = _places([output.expected.item_bytes for output in outputs])
        self.spans = _places([output.span_bytes for output in outputs])
        self._which = np.repeat(np.arange(len(counts)), counts)
        flat = np.concatenate(positions)
        self._offsets = np.zeros(flat.shape, dtype=np.uint64)
        forms = [(output.strides, output.expected) for output in outputs]
        for form in set(forms):  # calls mostly have the same
            there = np.array([form == one for one in forms])[self._which]
            self._offsets[there] = Output(0, *form).offsets(flat[there]).astype(np.uint64)
        self.sizes = items[self._which]
        ends = np.cumsum(self.sizes)
        self.targets = (ends - self.sizes).astype(np.uint64) + np.uint64(host)
        self.size_bytes = int(ends[-1]) if ends.size else 0
        self._borders = np.cumsum(_places(counts) * items).astype(np.int64)

    def addresses(self, page: bytes) -> npt.NDArray[np.uint64] | None:
        """Where the outputs lie, shape (outputs,); None where anything else on the page is not as planned."""
        count = len(self._words)
        if int.from_bytes(page[8 * wire.OUTPUTS : 8 * wire.OUTPUTS + 8], "little") != count:
            return None
        rows = _rows(page, count)
        return rows[:, 0] if np.array_equal(rows[:, 1:], self._words) else None

    def sources(self, address: int, starts: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Addresses of the elements in an arena, given where each output begins in it."""
        return self._offsets + (starts + np.uint64(address))[self._which]

    def split(self, host: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.generic]]:
        """Copies of each output's elements."""
        parts = np.split(host[: self.size_bytes].copy(), self._borders[:-1])
        return [decode(part, dtype) for part, dtype in zip(parts, self._dtypes, strict=True)]


def _rows(page: bytes, count: int) -> npt.NDArray[np.uint64]:
    """The first descriptors of a page, shape (count, words)."""
    words = np.frombuffer(page, dtype=np.uint64, count=count * wire.DESCRIPTOR_WORDS, offset=wire.DESCRIPTOR_OFFSET)
    return words.reshape(count, wire.DESCRIPTOR_WORDS)


def _places(numbers: Sequence[int]) -> npt.NDArray[np.uint64]:
    return np.array(numbers, dtype=np.uint64)


def _addresses(tensors: Sequence[Tensor]) -> npt.NDArray[np.uint64]:
    return _places([one.data_ptr() for one in tensors])
