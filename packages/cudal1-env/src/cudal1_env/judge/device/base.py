"""The protocol of a device. `cpu.py` and `cuda/` implement it; everything else is the same for both."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire
from cudal1_worker.overlap import Place

from cudal1_env.judge.device.health import Held
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
        got: What the program returned; it chooses the numbers in it.
    """

    def __init__(self, expected: str, got: str = "") -> None:
        super().__init__(expected, got)
        self.expected, self.got = expected, got

    def text(self, *, withheld: bool) -> str:
        """Return what was expected, and what the program returned unless that is withheld."""
        return self.expected if withheld or not self.got else f"{self.expected}, got {self.got}"

    def __str__(self) -> str:
        return self.text(withheld=False)


_MAX_SPAN_BYTES = 256 << 20
"""Bytes that an output of any size may span. On a CPU all of them are copied when the whole output is compared."""


@dataclass(frozen=True)
class Output:
    """Address and strides of one output as a worker reports them, checked against the form that the task expects."""

    address: int
    strides: tuple[int, ...]
    """In elements."""
    expected: Expected

    @cached_property
    def place(self) -> Place:
        """Where its elements lie."""
        return Place(self.address, self.expected.shape, self.strides, self.expected.item_bytes)

    @cached_property
    def span_bytes(self) -> int:
        """Bytes from the first to the last element."""
        return self.place.span_bytes

    def offsets(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Bytes from the address to elements at flat positions (in C order of the shape), shape (n,)."""
        indices = np.unravel_index(positions, self.expected.shape) if self.expected.shape else ()
        offsets = np.zeros(positions.shape, dtype=np.int64)
        for index, stride in zip(indices, self.strides, strict=True):
            offsets += index.astype(np.int64) * stride
        return offsets * self.expected.item_bytes


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


class ArmMemory(Protocol):
    """Memory of one arm: the blocks in which it finds inputs, and what it leaves behind.

    What is given here holds on a CPU, whose arms need no memory of their own and which has no chains.

    What reads or writes outputs raises `Contract` where the memory that the worker named is not there or not its own.
    """

    def begin(self) -> tuple[wire.Message, list[int]]:
        """Return what the worker is sent about its memory before its constructor runs; `began` takes its answer."""
        ...

    def began(self, answer: wire.Message) -> None:
        """Take the worker's answer to `begin`."""

    def put(self, slot: int, inputs: Array) -> None:
        """Write the inputs of a call into a block, and wait until they are there. The arm stands still, or waits."""

    def stage(self, calls: Sequence[Staging]) -> Sequence[Sequence[int]]:
        """Prepare the calls of a chain before the clock runs.

        Returns:
            For each call the words that the worker gets before its ready word: the key of its inputs.
        """
        return [()] * len(calls)

    def intact(self, slot: int, inputs: Array, address: int) -> bool:
        """Whether the inputs of an untimed call, mapped in the worker at `address`, are as they were."""
        ...

    def read(self, plan: Plan, outputs: Sequence[Output]) -> npt.NDArray[np.uint8]:
        """Copy the elements of a plan from checked outputs to the host, shape (plan.size_bytes,)."""
        ...

    def whole(self, output: Output) -> Array:
        """Copy a whole output, flat, in C order of its shape."""
        ...

    def overwrite(self, outputs: Sequence[Output]) -> None:
        """Overwrite exactly the elements of outputs that were compared, so that no answer is left in them.

        The arm stands still. Elements that lie in an input, because the reference's do, are left.
        """

    def close(self) -> None:
        """Give everything back; the worker is dead."""


@dataclass(frozen=True)
class Staging:
    """What is known of a call of a chain before the clock runs."""

    inputs: Array
    plan: Plan
    """What is read of its outputs before the clock stops."""


@dataclass(frozen=True)
class Needs:
    """Sizes that an arm's memory must hold."""

    input_bytes: int
    """Size of a set of inputs."""
    output_bytes: int
    """Size of the outputs of one call."""
    work_bytes: int
    """Peak memory of a call of the reference, outputs included; 0 on a CPU."""


class Device(Protocol):
    """A kind of device, as the judge uses it.

    What is given here holds on a CPU: control groups and limits see to memory, and no driver tells of the device.
    """

    name: Literal["cpu", "cuda"]
    identity: str = ""
    """Which one of its kind: a GPU's uuid; empty for the CPU."""
    code: int
    """How descriptors call it."""
    tf32: bool = False
    """Whether both arms and the oracle may round to TF32."""
    locks: tuple[str, ...] = ()
    """What must be leased beside the arms' core."""
    chained: bool
    """Whether a sample is a chain of calls between which the clock runs on and the worker is not stopped. A GPU's work
    outlives a stopped process. On a CPU nothing does, so each call is a sample of its own."""
    neighbour_allowance: float
    """Maximum ratio of the reference's latency beside a frozen honest candidate to its latency alone."""
    gpus: tuple[str, ...] | None = None
    """Which GPUs' nodes of /dev a worker finds, where the machine has several; None: what there is."""
    at_once_bytes: int
    """Bytes of input sets and answers that an oracle makes per request: each switch of the GPU costs time."""
    environment: dict[str, str]
    """Environment variables of the workers, beside those that they share with the judge."""
    faults: tuple[type[Exception], ...] = ()
    """Exceptions that failures of the device raise in the judge."""
    model: str
    """Model of the CPU or GPU."""
    driver: str | None = None
    """Version of the driver."""

    def chain_limit(self, input_bytes: int) -> int:
        """Return the maximum length of a chain for inputs of this size, untimed calls included."""
        return 1

    def out_of_room(self, error: Exception) -> bool:
        """Whether a fault means that the device has too little free memory."""
        return False

    def state(self) -> GpuState | None:
        """State of the device as its driver reports it; None without a driver."""
        return None

    def foreign_processes(self, own: Collection[int]) -> int:
        """Number of foreign processes on the device."""
        return 0

    def held(self) -> Held | None:
        """Device memory in use; None where control groups and limits bound it."""
        return None

    def free_bytes(self) -> int | None:
        """Free device memory; None as in `held`."""
        return None

    def own_bytes(self) -> int:
        """Memory of the device that this process holds, for itself and for workers, by its own count."""
        return 0

    def computes(self) -> bool:
        """Whether the device still computes correctly for the judge."""
        return True

    def roofline(self, input_bytes: Sequence[int], output_bytes: int, shares: Sequence[float]) -> Roofline | None:
        """Return the roofline of a task (see `roofline.moved_bytes`); None where none is known.

        Args:
            input_bytes: Size of each input tensor.
            output_bytes: Size of all outputs.
            shares: For each input tensor the minimum share of its elements that influence the output.
        """
        return None

    def write_ms(self, size_bytes: int) -> float:
        """Upper bound of the milliseconds for writing bytes without reading any. Under the lease."""
        ...

    def settle(self) -> None:
        """Bring the caches into the state in which each timed sample begins. Both arms stand still."""
        ...

    def memory(self, pid: int, needs: Needs) -> ArmMemory:
        """Make the memory of an arm, whose worker is `pid`."""
        ...

    def block(self, size_bytes: int) -> Block:
        """Make memory for an oracle."""
        ...

    def pool_bytes(self, wanted: int) -> int:
        """Memory that input sets and answers may take, where the settings say `wanted`."""
        return wanted

    def trim(self) -> None:
        """Free cached memory."""

    def copy(self, array: Array) -> Array:
        """Copy an array of the device."""
        ...

    def view(self, raw: Array, dtype: Literal["float64", "float32", "int64"]) -> Array:
        """View bytes as numbers."""
        ...

    def take(self, wanted: Sequence[tuple[Array, npt.NDArray[np.int64]]]) -> list[npt.NDArray[np.generic]]:
        """Copy elements of several flat arrays to the host in one transfer.

        Args:
            wanted: float64, float32 or int64 arrays, and positions in each; float32 may come as float64.
        """
        ...

    def to_host(self, array: Array) -> npt.NDArray[np.uint8]:
        """Copy bytes to the host."""
        ...

    def machine(self, core: int | None, torch_version: str, cuda_version: str | None) -> Machine:
        """Describe this machine."""
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


def parse_outputs(page: bytes, expected: tuple[Expected, ...], device_code: int) -> list[Output]:
    """Check a copy of the reply page against the contract.

    Raises:
        Contract: Number, device, dtype or shape differ, or strides reach backwards or let elements share memory.
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
        outputs.append(Output(address, strides, want))
    return outputs


def check_holes(output: Output) -> None:
    """Refuse outputs that span too much memory to be compared; a diagonal or a column of some matrix may have holes.

    Raises:
        Contract: They do.
    """
    want = output.expected
    if output.span_bytes > max(16 * want.size * want.item_bytes, _MAX_SPAN_BYTES):
        raise Contract("expected an output without large gaps in its memory", f"strides {list(output.strides)}")
