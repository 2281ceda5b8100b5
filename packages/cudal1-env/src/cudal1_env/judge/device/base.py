"""What the judge asks of a device. `cpu.py` and `cuda.py` answer; everything else is the same for both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire

from cudal1_env.judge.device.health import Held
from cudal1_env.judge.device.roofline import Floor
from cudal1_env.judge.device.strides import own_memory
from cudal1_env.judge.device.tensors import Array, Expected
from cudal1_env.records import GpuState, Machine


class Contract(Exception):
    """Outputs are not what the task's contract says; the text says what was expected and what came."""


_MOST_SPAN_BYTES = 256 << 20
"""What an output may span whatever its size. On a CPU all of it is copied when the whole output is compared."""


@dataclass(frozen=True)
class Output:
    """Where a worker says that one output lies; checked against what the task expects."""

    address: int
    strides: tuple[int, ...]
    """In elements."""
    expected: Expected

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to the last element."""
        return _span_bytes(self.strides, self.expected)

    def offsets(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Bytes from the address to elements at flat positions (in C order of the shape), shape (n,)."""
        indices = np.unravel_index(positions, self.expected.shape) if self.expected.shape else ()
        offsets = np.zeros(positions.shape, dtype=np.int64)
        for index, stride in zip(indices, self.strides, strict=True):
            offsets += index.astype(np.int64) * stride
        return offsets * self.expected.item_bytes


@lru_cache
def _span_bytes(strides: tuple[int, ...], expected: Expected) -> int:
    reach = sum((n - 1) * s for n, s in zip(expected.shape, strides, strict=True))
    return (reach + 1) * expected.item_bytes if expected.size else 0


class Block(Protocol):
    """Memory of the judge that an oracle writes."""

    fd: int
    size_bytes: int

    @property
    def bytes(self) -> Array:
        """The memory, shape (size_bytes,)."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class ArmMemory(Protocol):
    """Memory of one arm: the blocks in which it finds inputs, and what it leaves behind."""

    cold: bool
    """Whether `supply` empties the caches last in any case; else a few inputs may come after that."""
    most_calls: int
    """Most calls in one go from here on. Whether inputs are few goes by the most, not by each turn: what it takes to
    bring them is then the same for all."""

    def begin(self) -> tuple[wire.Message, list[int]] | None:
        """What the worker must be told before its constructor runs, and what it answers is given to `began`."""
        ...

    def began(self, answer: wire.Message) -> None:
        """Take the worker's answer to `begin`."""
        ...

    def slots(self, count: int) -> tuple[wire.Message, list[int]]:
        """Make blocks for the inputs of `count` calls in one go, twice; what the worker must be told of them."""
        ...

    def present(self, inputs: Array, *, writable: bool) -> AbstractContextManager[tuple[wire.Message, list[int]]]:
        """Lay out the inputs of an untimed call; what the worker must be told of them."""
        ...

    def fill(self, first: int, inputs: Sequence[Array]) -> None:
        """Write inputs into the blocks from `first` on, and wait until they are there."""
        ...

    def supply(self, turn: int, first: int, inputs: Sequence[Array], *, watch: bool) -> float | None:
        """Write the inputs of a timed turn and empty the caches; the arm stands still.

        Args:
            turn: Number of the turn.
            first: The block from which on they go.
            inputs: One for each call.
            watch: Hold the device meanwhile, to see whether anything else works on it.

        Returns:
            Seconds that others took of the device, if that was asked for and can be told, else None.
        """
        ...

    def intact(self, inputs: Array, address: int) -> bool:
        """Whether the inputs of the last untimed call, mapped in the worker at `address`, are as they were."""
        ...

    def expect(self, positions: Sequence[npt.NDArray[np.int64]], expected: tuple[Expected, ...]) -> None:
        """Get ready to read these positions: what can be done before the clock runs."""
        ...

    def samples_as_before(self, page: bytes) -> Callable[[], list[npt.NDArray[np.generic]]] | None:
        """Read what `expect` was told, if the outputs differ from those read before in their addresses only.

        Args:
            page: A copy of the reply page.

        Returns:
            What sorts out the elements for each output, which are read by now, so that this need not be on the clock;
            it is called before anything else is read. None where the page says something else, which is for `samples`.
        """
        ...

    def learn(self, page: bytes, outputs: Sequence[Output]) -> None:
        """Remember the form of the checked outputs of one call, for `samples_as_before`."""
        ...

    def samples(
        self, outputs: Sequence[Output], positions: Sequence[npt.NDArray[np.int64]]
    ) -> list[npt.NDArray[np.generic]]:
        """Read the outputs' elements at flat positions.

        Raises:
            Contract: The memory that the worker named is not there.
        """
        ...

    def whole(self, output: Output) -> Array:
        """Read a whole output, flat, in C order of its shape.

        Raises:
            Contract: The memory that the worker named is not there, or is not the worker's own.
        """
        ...

    def close(self) -> None:
        """Give everything back; the worker is dead."""
        ...


@dataclass(frozen=True)
class Needs:
    """What an arm's memory must hold."""

    input_bytes: int
    """Size of a set of inputs."""
    output_bytes: int
    """Size of the outputs of one call."""
    work_bytes: int
    """What a call of the reference takes at most, its outputs among it; 0 on a CPU."""
    calls: int
    """Most calls in one go ..."""
    burst_bytes: int
    """... and most that their inputs, or their outputs, take."""


class Device(Protocol):
    """A kind of device, as the judge uses it."""

    name: Literal["cpu", "cuda"]
    identity: str
    """Which one of its kind: a GPU's uuid; empty for the CPU."""
    code: int
    """How descriptors call it."""
    tf32: bool
    """Whether both arms and the oracle may round to TF32."""
    locks: tuple[str, ...]
    """What must be leased beside the arms' core."""
    sample_pieces: int | None
    """How many elements are read before the clock stops, over all outputs of a turn; None: whole samples."""
    bursts: bool
    """Whether several short calls are made in one go."""
    reads_frozen: bool
    """Whether outputs are read while the worker stands still. On a GPU its kernels would run on in any case, and what
    counts is that the bytes which were read at that moment are right."""
    gpus: tuple[str, ...] | None
    """Which GPUs' nodes of /dev a worker finds, where the machine has several; None: what there is."""
    at_once_bytes: int
    """Input sets with answers that an oracle makes in one go: each time that it and the judge take turns costs."""
    most_burst_bytes: int
    """Memory that the inputs, or the outputs, of calls in one go may take, at most."""
    environment: dict[str, str]
    """Environment variables of the workers, beside those that they share with the judge."""
    faults: tuple[type[Exception], ...]
    """What the device's own failures raise in the judge."""

    def out_of_room(self, error: Exception) -> bool:
        """Whether a fault says that the device has too little memory free."""
        ...

    def state(self) -> GpuState | None:
        """What the driver tells about the device now; None where there is none."""
        ...

    def strangers(self, own: Collection[int]) -> int:
        """How many processes work on the device that are not of this judge."""
        ...

    def held(self) -> Held | None:
        """Memory of the device that is in use; None where control groups and limits see to it."""
        ...

    def free_bytes(self) -> int | None:
        """Memory of the device that nobody uses; None as in `held`."""
        ...

    def own_bytes(self) -> int:
        """Memory of the device that this process holds, for itself and for workers, by its own count."""
        ...

    def computes(self) -> bool:
        """Whether the judge itself still gets right answers from the device."""
        ...

    def peaks_known(self) -> bool:
        """Whether `floor` answers without measuring."""
        ...

    def floor(
        self, input_bytes: Sequence[int], output_bytes: int, shares: Sequence[float], *, again: bool = False
    ) -> Floor | None:
        """The speed of light of a task (see `floor.moved_bytes`); None where no floor is known. Under the lease.

        Args:
            input_bytes: Size of each input tensor.
            output_bytes: Size of all outputs.
            shares: For each input tensor the share of its elements that matter, at least.
            again: Measure the device's peaks again.
        """
        ...

    def memory(self, pid: int, needs: Needs) -> ArmMemory:
        """Make the memory of an arm, whose worker is `pid`."""
        ...

    def block(self, size_bytes: int) -> Block:
        """Make memory for an oracle."""
        ...

    def pool_bytes(self, wanted: int) -> int:
        """Memory that input sets and answers may take, where the settings say `wanted`."""
        ...

    def trim(self) -> None:
        """Give memory back that is only kept for later use."""
        ...

    def copy(self, array: Array) -> Array:
        """Copy an array of the device."""
        ...

    def view(self, raw: Array, dtype: Literal["float64", "float32", "int64"]) -> Array:
        """View bytes as numbers."""
        ...

    def take(self, wanted: Sequence[tuple[Array, npt.NDArray[np.int64]]]) -> list[npt.NDArray[np.generic]]:
        """Copy elements of flat arrays to the host, all in one go.

        Args:
            wanted: float64, float32 or int64 arrays, and positions in each; float32 may come as float64.
        """
        ...

    def to_host(self, array: Array) -> npt.NDArray[np.uint8]:
        """Copy bytes to the host."""
        ...

    def machine(self, core: int | None, torch_version: str, cuda_version: str | None) -> Machine:
        """Describe this machine."""
        ...


def parse_outputs(page: bytes, expected: tuple[Expected, ...], calls: int, device_code: int) -> list[Output]:
    """Check a copy of the reply page against the contract.

    Args:
        page: The reply page, copied once after the worker was frozen.
        expected: What the task's outputs must look like.
        calls: How many calls were made in one go.
        device_code: On which kind of device they must lie.

    Returns:
        The outputs of the first call, then those of the second, ...

    Raises:
        Contract: Number, device, dtype or shape differ, or strides reach backwards or let elements share memory.
    """
    count = int.from_bytes(page[8 * wire.OUTPUTS : 8 * wire.OUTPUTS + 8], "little")
    if count != calls * len(expected):
        raise Contract(f"expected {len(expected)} output tensors, got {count / calls:g}")
    outputs: list[Output] = []
    for place in range(count):
        position = place % len(expected)
        want = expected[position]
        offset = wire.DESCRIPTOR_OFFSET + place * wire.DESCRIPTOR.size
        address, code, rank, device, *rest = (int(word) for word in wire.DESCRIPTOR.unpack_from(page, offset))
        shape, strides = tuple(rest[:rank]), tuple(rest[wire.MAX_DIMENSIONS : wire.MAX_DIMENSIONS + rank])
        dtype = wire.DTYPES[code] if code < len(wire.DTYPES) else f"unknown dtype {code}"
        if rank > wire.MAX_DIMENSIONS or shape != want.shape:
            raise Contract(f"expected shape {list(want.shape)} for output {position}, got {list(shape)}")
        if dtype != want.dtype:
            raise Contract(f"expected dtype {want.dtype} for output {position}, got {dtype}")
        if device != device_code:
            raise Contract(f"expected output {position} on the task's device, got another")
        if any(stride < 0 for stride in strides):
            raise Contract(f"expected strides of zero or more for output {position}, got {list(strides)}")
        if not own_memory(strides, want):
            raise Contract(
                f"expected memory of its own for each element of output {position}, as in the reference's output; the "
                f"strides {list(strides)} let elements share memory: return a tensor in full, e.g. by `.contiguous()`"
            )
        outputs.append(Output(address, strides, want))
    return outputs


def check_holes(output: Output) -> None:
    """Refuse outputs that span more memory than can be looked at; a diagonal or a column of some matrix may have holes.

    Raises:
        Contract: They do.
    """
    want = output.expected
    if output.span_bytes > max(16 * want.size * want.item_bytes, _MOST_SPAN_BYTES):
        raise Contract(f"expected an output without large holes, strides {list(output.strides)} span too much")
