"""The CUDA device: inputs and outputs lie in device memory of the judge, which the worker maps.

Tensors here are the judge's own, over memory that it made (`cudal1_worker.vmm`); nothing of a worker is executed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import time
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from cudal1_worker import protocol as wire
from cudal1_worker import vmm
from cudal1_worker.sandbox import GPU_NODE

from cudal1_env.errors import MachineError
from cudal1_env.judge.copies import CopyEngine
from cudal1_env.judge.device import Contract, Output, check_holes
from cudal1_env.judge.floor import Floor, floor_of, moved_bytes
from cudal1_env.judge.gpu import gpu_facts
from cudal1_env.judge.health import Held
from cudal1_env.judge.numerics import Answer, Expected, decode
from cudal1_env.judge.nvml import Nvml
from cudal1_env.judge.peaks import Peaks, known_peaks, measure_peaks
from cudal1_env.records import GpuState, Machine

Tensor = Any
"""A torch tensor on the GPU."""

_SAMPLE_BYTES = 1 << 20
"""Room for the samples of all outputs of one turn."""
_PROBE_KERNELS = 8
"""A millisecond and more of work: enough that inputs arrive while it runs."""
_NUMBERS = 1 << 16
"""How many are added up to see whether the GPU still computes."""
_ARENA_BYTES = 1 << 30
"""Least size of an arena. Larger intermediate results come from the driver; only outputs must lie in it."""


class CudaDevice:
    """One GPU, leased as a whole.

    Args:
        tf32: Whether products may round their factors to TF32.

    Raises:
        MachineError: There is no usable GPU.
    """

    name: Literal["cpu", "cuda"] = "cuda"
    code = 1
    bursts = True
    sample_pieces: int | None = 32
    reads_frozen = False

    def __init__(self, *, tf32: bool) -> None:
        torch: Any = importlib.import_module("torch")
        facts = gpu_facts()
        if facts.obstacles:
            raise MachineError("; ".join(facts.obstacles))
        self.tf32 = tf32
        self._torch = torch
        self._properties: Any = torch.cuda.get_device_properties(0)
        self._level2 = facts.level2_bytes
        self._driver = facts.driver
        self.identity = facts.uuid
        self._nvml = Nvml(facts.uuid)
        torch_faults: tuple[type[Exception], ...] = (torch.AcceleratorError, torch.OutOfMemoryError)
        self.faults = (vmm.CudaError, self._nvml.fault, *torch_faults)
        try:
            self._flush: Tensor = torch.zeros(2, 2 * self._level2, dtype=torch.uint8, device="cuda")
            self._copies = CopyEngine()
        except self.faults as error:
            raise MachineError(
                f"expected room for a context on GPU-{self.identity}, got {type(error).__name__}: {error}; "
                f"{facts.strangers} processes of others are there (nvidia-smi): wait for them, or choose another GPU"
            ) from error
        self.locks = (f"gpu-{self.identity}",)
        self.gpus: tuple[str, ...] | None = None
        self.environment: dict[str, str] = {}
        if sum(GPU_NODE.fullmatch(name) is not None for name in os.listdir("/dev")) > 1:
            # A program that chose another GPU would have two. Where only one is to be seen, its number is another.
            self.gpus = (f"nvidia{self._nvml.minor()}",)
            self.environment["CUDA_VISIBLE_DEVICES"] = f"GPU-{self.identity}"

    def held(self) -> Held:
        """Memory of the GPU that is in use, and what of it this process holds by its own count."""
        return Held(self._nvml.used_bytes(), int(self._torch.cuda.memory_reserved()) + CudaBlock.all_bytes)

    def free_bytes(self) -> int:
        """Memory of the GPU that nobody uses."""
        free, _ = self._torch.cuda.mem_get_info()
        return int(free)

    def computes(self) -> bool:
        """Whether this process's own context still gives right answers."""
        return int(self._torch.arange(_NUMBERS, device="cuda").sum()) == _NUMBERS * (_NUMBERS - 1) // 2

    def settle(self) -> None:
        """Overwrite the L2 cache and give back its persisting lines."""
        vmm.check(vmm.driver.cuCtxResetPersistingL2Cache())
        self._copies.copy_one(self._flush[0].data_ptr(), self._flush[1].data_ptr(), self._flush.shape[1])

    def probe(self, fill: Callable[[], None]) -> float:
        """Write inputs while kernels of the judge's fill the GPU; return the seconds that these took.

        A worker's kernel that the inputs' arrival sets off, though its process stands still, makes that longer by its
        own time: kernels of two processes take turns.
        """
        began = time.perf_counter()
        for _ in range(_PROBE_KERNELS):
            self._flush.add_(1)
        fill()
        self._torch.cuda.synchronize()
        return time.perf_counter() - began

    def state(self) -> GpuState:
        """Clocks, power and throttle reasons, as the driver tells them."""
        return self._nvml.state()

    def strangers(self, own: Collection[int]) -> int:
        """How many processes compute on this GPU that are not of this judge."""
        return len(self._nvml.processes() - {os.getpid(), *own})

    def floor(
        self, input_bytes: Sequence[int], output_bytes: int, shares: Sequence[float], *, again: bool = False
    ) -> Floor | None:
        """The time that a task's bytes need at this GPU's bandwidth, which is measured once."""
        moved = moved_bytes(input_bytes, output_bytes, shares, level2_bytes=self._level2)
        return floor_of(moved, self.peaks(again=again).bandwidth_gb_s) if moved else None

    def peaks(self, *, again: bool = False) -> Peaks:
        """What this GPU can do at best; measured where it is not known. The caller holds the lease."""
        uuid, driver = self.identity, self._driver
        return known_peaks(uuid, driver, lambda: measure_peaks(uuid, driver), again=again)

    def memory(self, pid: int, input_bytes: int, output_bytes: int) -> CudaMemory:
        """Make the memory of an arm."""
        return CudaMemory(self._copies, input_bytes, output_bytes, tf32=self.tf32)

    def block(self, size_bytes: int) -> CudaBlock:
        """Make memory for an oracle."""
        return CudaBlock(size_bytes)

    def copy(self, array: Tensor) -> Tensor:
        """Copy a tensor on the GPU."""
        return array.clone()

    def view(self, raw: Tensor, dtype: Literal["float64", "int64"]) -> Tensor:
        """View bytes as numbers."""
        return raw.view(getattr(self._torch, dtype))

    def take(self, values: Tensor, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
        """Copy elements of a flat tensor to the host."""
        taken: npt.NDArray[np.generic] = values[self._torch.from_numpy(positions).cuda()].cpu().numpy()
        return taken

    def to_host(self, array: Tensor) -> npt.NDArray[np.uint8]:
        """Copy bytes to the host."""
        host: npt.NDArray[np.uint8] = array.cpu().numpy()
        return host

    def machine(self, core: int | None, torch_version: str, cuda_version: str | None) -> Machine:
        """Describe this machine."""
        return Machine(
            device="cuda",
            name=str(self._properties.name),
            cores=len(os.sched_getaffinity(0)),
            core=core,
            kernel=f"{platform.system()} {platform.release()}",
            python=platform.python_version(),
            torch=torch_version,
            driver=self._driver,
            cuda=cuda_version,
        )


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
        """Give it back."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            del self.bytes
            self._mapping.close()
            CudaBlock.all_bytes -= self.size_bytes


class CudaMemory:
    """Memory of one arm on a GPU: the arena in which the worker's torch allocates, and the slots of its inputs.

    Args:
        copies: Copies without a kernel.
        input_bytes: Size of a set of inputs.
        output_bytes: Size of the outputs of one call.
        tf32: Whether the worker may round to TF32.
    """

    def __init__(self, copies: CopyEngine, input_bytes: int, output_bytes: int, *, tf32: bool) -> None:
        import torch

        self._torch: Any = torch
        self._copies = copies
        self._tf32 = tf32
        self._input_bytes = input_bytes
        self._stride = vmm.rounded(input_bytes)
        self._arena = CudaBlock(max(_ARENA_BYTES, 8 * output_bytes))
        self._slots: CudaBlock | None = None
        self._base = 0
        self._strides: dict[int, tuple[int, ...]] = {}
        self._plan: _Plan | None = None
        self._host: Tensor = torch.empty(_SAMPLE_BYTES, dtype=torch.uint8, pin_memory=True)

    def begin(self) -> tuple[wire.Message, list[int]]:
        """Hand over the arena."""
        return {"op": "cuda", "arena_bytes": self._arena.size_bytes, "tf32": self._tf32}, [self._arena.fd]

    def began(self, answer: wire.Message) -> None:
        """Take the address at which the worker says that it mapped the arena."""
        base = answer.get("arena")
        self._base = base if isinstance(base, int) else 0

    def slots(self, count: int) -> tuple[wire.Message, list[int]]:
        """Make slots for inputs."""
        if self._slots is not None:
            self._slots.close()
        number = wire.SLOTS * count
        self._slots = CudaBlock(self._stride * number)
        return {"bytes": self._input_bytes, "stride": self._stride, "slots": number}, [self._slots.fd]

    @contextlib.contextmanager
    def present(self, inputs: Tensor, *, writable: bool) -> Generator[tuple[wire.Message, list[int]]]:
        """Put the inputs of an untimed call into the first slot."""
        self.fill(0, [inputs])
        yield {"slot": 0}, []

    def fill(self, first: int, inputs: Sequence[Tensor]) -> None:
        """Copy inputs into the slots from `first` on, and wait until they are there."""
        slots = [self._slot(first + number).data_ptr() for number in range(len(inputs))]
        sources = [one.data_ptr() for one in inputs]
        self._copies.copy(_places(slots), _places(sources), _places([self._input_bytes] * len(slots)))

    def _slot(self, number: int) -> Tensor:
        assert self._slots is not None
        return self._slots.bytes[self._stride * number : self._stride * number + self._input_bytes]

    def intact(self, inputs: Tensor, address: int) -> bool:
        """Whether the first slot still holds the inputs of the last untimed call."""
        return bool(self._torch.equal(self._slot(0), inputs))

    def expect(self, answers: Sequence[Answer], expected: tuple[Expected, ...]) -> None:
        """Work out which bytes will be read, as if the outputs' strides were those of the call before."""
        width = len(expected)
        outputs = [
            Output(0, self._strides.get(k % width) or _dense(expected[k % width].shape), expected[k % width])
            for k in range(len(answers))
        ]
        self._plan = _Plan(outputs, answers)

    def samples(self, outputs: Sequence[Output], answers: Sequence[Answer]) -> list[npt.NDArray[np.generic]]:
        """Read the outputs' elements at the answers' positions, all in one go.

        Raises:
            Contract: The memory that the worker named is not in the arena.
        """
        starts = [self._start(output) for output in outputs]
        plan, self._plan = self._plan, None
        if plan is None or plan.strides != [output.strides for output in outputs]:
            plan = _Plan(outputs, answers)
        host = self._host.data_ptr()
        assert plan.size_bytes <= _SAMPLE_BYTES, "more samples than there is room for"
        self._copies.copy(plan.targets + host, plan.sources(self._arena.address, starts), plan.sizes)
        data = plan.split(self._host.numpy())
        width = len({id(output.expected) for output in outputs})
        self._strides = {k: output.strides for k, output in enumerate(outputs[:width])}
        return [decode(part, output.expected.dtype) for part, output in zip(data, outputs, strict=True)]

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
        """Offset of an output in the arena."""
        start = output.address - self._base
        if output.expected.size and not 0 <= start <= self._arena.size_bytes - output.span_bytes:
            raise Contract("expected outputs in memory that torch allocated, they lie elsewhere")
        return start

    def close(self) -> None:
        """Give everything back."""
        self._arena.close()
        if self._slots is not None:
            self._slots.close()


class _Plan:
    """Which bytes to read for samples of some outputs."""

    def __init__(self, outputs: Sequence[Output], answers: Sequence[Answer]) -> None:
        self.strides = [output.strides for output in outputs]
        offsets = [output.offsets(answer.positions) for output, answer in zip(outputs, answers, strict=True)]
        counts = [one.size for one in offsets]
        items = [output.expected.item_bytes for output in outputs]
        self._offsets = np.concatenate(offsets).astype(np.uint64)
        self._which = np.repeat(np.arange(len(offsets)), counts)
        self.sizes = np.repeat(np.array(items, dtype=np.uint64), counts)
        ends = np.cumsum(self.sizes)
        self.targets = (ends - self.sizes).astype(np.uint64)
        self.size_bytes = int(ends[-1]) if ends.size else 0
        self._borders = np.cumsum([count * item for count, item in zip(counts, items, strict=True)])

    def sources(self, address: int, starts: Sequence[int]) -> npt.NDArray[np.uint64]:
        """Addresses of the elements in an arena, given where each output begins in it."""
        return self._offsets + (np.array(starts, dtype=np.uint64) + np.uint64(address))[self._which]

    def split(self, host: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
        """Copies of each output's bytes."""
        return np.split(host[: self.size_bytes].copy(), self._borders[:-1])


def _places(numbers: Sequence[int]) -> npt.NDArray[np.uint64]:
    return np.array(numbers, dtype=np.uint64)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, in elements."""
    return tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))
