"""The protocol of a device, implemented by `cpu.py` and `cuda/`; the rest of the judge is common to both."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire
from cudal1_worker.overlap import Place, shared

from cudal1_env.errors import MachineError, NoRoomError
from cudal1_env.judge.device.roofline import Roofline
from cudal1_env.judge.device.strides import own_memory
from cudal1_env.judge.device.tensors import Array, Expected
from cudal1_env.records import GpuState, Machine

if TYPE_CHECKING:
    from cudal1_env.judge.device.reading import Plan


class Contract(Exception):
    """Outputs break the task's contract.

    Args:
        expected: What was expected.
        got: What the program returned; the program controls the numbers in it.
    """

    def __init__(self, expected: str, got: str = "") -> None:
        super().__init__(expected, got)
        self.expected, self.got = expected, got

    def text(self, *, withheld: bool) -> str:
        """Return what was expected, and what the program returned unless that is withheld."""
        return self.expected if withheld or not self.got else f"{self.expected}, got {self.got}"

    def __str__(self) -> str:
        return self.text(withheld=False)


_ADDRESSES = 1 << 57
"""Size of the largest address space of a process. Larger numbers overflow the judge's 64-bit arithmetic."""
_MAX_SPAN_BYTES = 256 << 20
"""Spans that are allowed for outputs of any size. On a CPU whole spans are copied to compare whole outputs."""


@dataclass(frozen=True)
class Output:
    """Address and strides of one output as a worker reports them, checked against the task's expected form."""

    address: int
    strides: tuple[int, ...]
    """In elements."""
    expected: Expected

    @cached_property
    def place(self) -> Place:
        """Memory layout of its elements."""
        return Place(self.address, self.expected.shape, self.strides, self.expected.item_bytes)

    @cached_property
    def span_bytes(self) -> int:
        """Bytes from the first to the last element."""
        return self.place.span_bytes

    def offsets(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return byte offsets of elements at flat positions (in C order of the shape), shape (n,)."""
        indices = np.unravel_index(positions, self.expected.shape) if self.expected.shape else ()
        offsets = np.zeros(positions.shape, dtype=np.int64)
        for index, stride in zip(indices, self.strides, strict=True):
            offsets += index.astype(np.int64) * stride
        return offsets * self.expected.item_bytes


class Block(Protocol):
    """The judge's memory that an oracle writes."""

    fd: int
    size_bytes: int

    @property
    def bytes(self) -> Array:
        """The memory, shape (size_bytes,)."""
        ...

    def close(self) -> None:
        """Free the memory."""


class ArmMemory(Protocol):
    """Memory of one arm: slots for its inputs, and its outputs.

    Default implementations are the CPU's, which has no chains.

    Methods that read or write outputs raise `Contract` if the memory that the worker names is missing or not its own.
    """

    def begin(self) -> tuple[wire.Message, list[int]]:
        """Return message and descriptors that tell the worker its memory before construction; see `began`."""
        ...

    def began(self, answer: wire.Message) -> None:
        """Take the worker's answer to the message of `begin`."""

    def put(self, slot: int, inputs: Array) -> None:
        """Write the inputs of a call into a slot and wait for completion. The arm is frozen or waits."""

    def stage(self, calls: Sequence[tuple[Array, Plan]]) -> Sequence[Sequence[int]]:
        """Prepare the calls of a chain before the clock runs.

        Args:
            calls: Inputs of each call, and the elements of its outputs to read on the clock.

        Returns:
            For each call, the words that the worker gets before the ready word: the key of its inputs.
        """
        return [()] * len(calls)

    def intact(self, slot: int, inputs: Array, address: int) -> bool:
        """Return whether the inputs of an untimed call, mapped in the worker at `address`, are unchanged."""
        ...

    def read(self, plan: Plan, outputs: Sequence[Output]) -> npt.NDArray[np.uint8]:
        """Copy the elements of a plan from checked outputs to the host, shape (plan.size_bytes,)."""
        ...

    def whole(self, outputs: Sequence[Output]) -> list[Array]:
        """Copy whole outputs, each flat, in C order of its shape."""
        ...

    def overwrite(self, outputs: Sequence[Output]) -> None:
        """Overwrite exactly the elements of compared outputs, so that no answer remains in memory.

        The arm is frozen. Outputs that alias an input, as the reference's do, are skipped.
        """

    def close(self) -> None:
        """Free everything; the worker is dead."""


class Device(Protocol):
    """A kind of device, as the judge uses it.

    Default implementations are the CPU's, where control groups and limits bound memory and no driver reports state.
    """

    name: Literal["cpu", "cuda"]
    identity: str = ""
    """A GPU's uuid; empty for the CPU."""
    code: int
    """The device's code in output descriptors."""
    tf32: bool = False
    """Whether both arms and the oracle may round to TF32."""
    locks: tuple[str, ...] = ()
    """Leases needed in addition to the arms' core."""
    chained: bool
    """Whether a sample is a chain of calls, during which the clock runs on and the worker is not frozen. GPU work
    continues while its process is frozen. CPU work does not, so there each call is a sample."""
    prepares_ahead: bool
    """Whether a task's first input sets, and what programs could omit, are found beside builds. A CPU is busy then."""
    neighbour_allowance: float
    """Maximum ratio of the reference's latency beside a frozen honest candidate to its latency alone."""
    gpus: tuple[str, ...] | None = None
    """GPU nodes in /dev that a worker sees, on machines with several; None shows all."""
    at_once_bytes: int
    """Maximum bytes of input sets and answers per request to an oracle; each switch of the GPU costs time."""
    environment: dict[str, str]
    """Environment variables of the workers, in addition to the common ones."""
    faults: tuple[type[Exception], ...] = ()
    """Exceptions that the judge gets from failures of the device."""
    model: str
    """Model of the CPU or GPU."""
    driver: str | None = None
    """Version of the driver."""

    def chain_limit(self, input_bytes: int) -> int:
        """Return the maximum length of a chain for inputs of this size, untimed calls included."""
        return 1

    def out_of_room(self, error: Exception) -> bool:
        """Return whether a fault means that the device has too little free memory."""
        return False

    @contextlib.contextmanager
    def faults_named(self) -> Generator[None]:
        """Turn the device's failures inside the block into machine errors.

        Raises:
            NoRoomError: The device has too little memory.
            MachineError: The device failed in another way.
        """
        try:
            yield
        except self.faults as error:
            kind = NoRoomError if self.out_of_room(error) else MachineError
            raise kind(
                f"the GPU failed in the judge with {type(error).__name__}: {error}; start a new process, "
                "on another GPU if it goes on"
            ) from error

    def state(self) -> GpuState | None:
        """Return the device's state as its driver reports it; None without a driver."""
        return None

    def foreign_processes(self, own: Collection[int]) -> int:
        """Return the number of foreign processes on the device."""
        return 0

    def total_bytes(self) -> int:
        """Return the memory of the device: on a CPU, that of the machine."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def free_bytes(self) -> int | None:
        """Return the free device memory; None if control groups and limits bound it."""
        return None

    def process_bytes(self, pids: Collection[int]) -> int | None:
        """Return the device memory that a worker's processes hold, the judge's blocks aside; None if unknown."""
        return None

    def computes(self) -> bool:
        """Return whether the device still computes correctly for the judge."""
        return True

    def roofline(self, input_bytes: Sequence[int], output_bytes: int, shares: Sequence[float]) -> Roofline | None:
        """Return the roofline of a task (see `roofline.moved_bytes`); None if unknown.

        Args:
            input_bytes: Size of each input tensor.
            output_bytes: Size of all outputs.
            shares: Minimum share of each input tensor's elements that influence the output.
        """
        return None

    def write_ms(self, size_bytes: int) -> float:
        """Return an upper bound of the time to write bytes without reading any. Call it under the lease."""
        ...

    def settle(self) -> None:
        """Bring the caches into the initial state of a timed sample. Both arms are frozen."""
        ...

    def memory(self, pid: int, input_bytes: int, output_bytes: int, work_bytes: int) -> ArmMemory:
        """Return new memory for the arm whose worker is `pid`; for the sizes see `IoSpec`."""
        ...

    def block(self, size_bytes: int) -> Block:
        """Return new memory for an oracle."""
        ...

    def pool_bytes(self, wanted: int) -> int:
        """Return the memory for input sets and answers, given the setting `wanted`."""
        return wanted

    def trim(self) -> None:
        """Free cached memory."""

    def copy(self, array: Array) -> Array:
        """Copy an array on the device."""
        ...

    def view(self, raw: Array, dtype: Literal["float64", "float32", "int64"]) -> Array:
        """View bytes as numbers."""
        ...

    def take(self, wanted: Sequence[tuple[Array, npt.NDArray[np.int64]]]) -> list[npt.NDArray[np.generic]]:
        """Copy elements of several flat arrays to the host in one transfer.

        Args:
            wanted: float64, float32 or int64 arrays, and positions in each; float32 may be returned as float64.
        """
        ...

    def to_host(self, array: Array) -> npt.NDArray[np.uint8]:
        """Copy bytes to the host."""
        ...

    def machine(self, core: int | None, torch_version: str, cuda_version: str | None) -> Machine:
        """Return a description of this machine."""
        return Machine(
            device=self.name,
            name=self.model,
            cores=len(os.sched_getaffinity(0)),
            core=core,
            kernel=f"{platform.system()} {platform.release()}",
            python=platform.python_version(),
            torch=torch_version,
            driver=self.driver,
            cuda=cuda_version if self.name == "cuda" else None,
        )


def address_of(told: object) -> int:
    """Return an address that a worker reports; 0, where no memory is, for anything else."""
    return told if isinstance(told, int) and 0 <= told < _ADDRESSES else 0


def parse_outputs(page: bytes, expected: tuple[Expected, ...], device_code: int) -> list[Output]:
    """Check a copy of the reply page against the contract.

    Raises:
        Contract: Number, device, dtype or shape differ; strides are negative or let elements share memory; an output
            reaches beyond any address space; or outputs have large gaps.
    """
    count = int.from_bytes(page[8 * wire.OUTPUTS : 8 * wire.OUTPUTS + 8], "little")
    if count != len(expected):
        raise Contract(f"expected {len(expected)} output tensors", f"{count}")
    outputs: list[Output] = []
    for position, want in enumerate(expected):
        offset = wire.DESCRIPTOR_OFFSET + position * wire.DESCRIPTOR.size
        address, code, rank, device, *rest = (int(word) for word in wire.DESCRIPTOR.unpack_from(page, offset))
        shape, strides = tuple(rest[:rank]), tuple(rest[wire.MAX_DIMENSIONS : wire.MAX_DIMENSIONS + rank])
        dtype = wire.DTYPES[code] if code < len(wire.DTYPES) else f"unknown dtype {code}"
        if rank > wire.MAX_DIMENSIONS or shape != want.shape:
            raise Contract(f"expected shape {list(want.shape)} for output {position}", f"{list(shape)}")
        if dtype != want.dtype:
            raise Contract(f"expected dtype {want.dtype} for output {position}", f"{dtype}")
        if device != device_code:
            raise Contract(f"expected output {position} on the task's device, got another")
        if any(stride < 0 for stride in strides):
            raise Contract(f"expected strides of zero or more for output {position}", f"{list(strides)}")
        if not own_memory(strides, want):
            raise Contract(
                f"expected memory of its own for each element of output {position}, as in the reference's output: "
                "return a tensor in full, e.g. by `.contiguous()`",
                f"strides {list(strides)}",
            )
        # Strides of dimensions of size 1 count, too, although no element is there.
        reach = address + want.item_bytes * (1 + sum(max(n, 1) * step for n, step in zip(shape, strides, strict=True)))
        if reach > _ADDRESSES:
            raise Contract(f"expected output {position} inside the worker's address space")
        outputs.append(Output(address, strides, want))
    own = [one for one in outputs if one.expected.size and not one.expected.aliases]
    if any(shared(one.place, other.place) for one, other in itertools.combinations(own, 2)):  # honest workers copy one
        raise Contract(
            "expected outputs that share no element with each other; return tensors with memory of their own"
        )
    check_gaps(outputs)
    return outputs


def check_gaps(outputs: Sequence[Output]) -> None:
    """Check that outputs do not span too much memory to compare; some gaps (a matrix column) are allowed.

    Raises:
        Contract: All spans together are too large.
    """
    spans = sum(one.span_bytes for one in outputs)
    if spans > max(16 * sum(one.expected.size * one.expected.item_bytes for one in outputs), _MAX_SPAN_BYTES):
        got = ", ".join(str(list(one.strides)) for one in outputs)
        raise Contract("expected outputs without large gaps in their memory", f"strides {got}")
