"""The kernel that masks inputs, run on the CPU by the double of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cudal1_env.errors import MachineError
from cudal1_env.judge.device.cuda.compiled import compiled
from cudal1_env.judge.device.cuda.memory import CudaMemory, masked_blocks
from cudal1_env.judge.device.reading import Plan
from cudal1_worker import protocol as wire
from cudal1_worker.masks import BLOCK_BYTES, KERNEL, KEY_WORDS, SOURCE
from doubles.cuda import Gpu

ZEROS_STREAM = bytes.fromhex(
    "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
    "984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42"
)
"""First block of ChaCha8 under a key of 256 zero bits and nonce 0, from the test vectors of the IETF draft
draft-strombergson-chacha-test-vectors-01 (TC1)."""

Bytes = npt.NDArray[np.uint8]
Apply = Callable[[Bytes, Sequence[int]], Bytes]


@pytest.fixture(scope="module")
def apply(tmp_path_factory: pytest.TempPathFactory) -> Apply:
    kernel = Gpu(tmp_path_factory.mktemp("masks")).compile_kernel(SOURCE, KERNEL)

    def applied(data: Bytes, key: Sequence[int]) -> Bytes:
        halves = [half for word in key for half in (word & 0xFFFFFFFF, word >> 32)]
        source = torch.from_numpy(data.copy())
        target = torch.zeros_like(source)
        kernel((3, 1, 1), (128, 1, 1), (source, target, data.size // BLOCK_BYTES, *halves))
        return target.numpy()

    return applied


def reference_stream(blocks: int, key: Sequence[int]) -> Bytes:
    """ChaCha8 by its definition, on all blocks at once."""
    words = np.frombuffer(np.array(key, dtype=np.uint64).tobytes(), dtype=np.uint32)
    counters = np.arange(blocks, dtype=np.uint32)
    constants = np.frombuffer(b"expand 32-byte k", dtype=np.uint32)
    first = [np.full(blocks, word, dtype=np.uint32) for word in (*constants, *words)]
    first += [counters, *[np.zeros(blocks, dtype=np.uint32)] * 3]
    x = [word.copy() for word in first]

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for into, of, by, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[into] = x[into] + x[of]
            x[by] = x[by] ^ x[into]
            x[by] = (x[by] << np.uint32(bits)) | (x[by] >> np.uint32(32 - bits))

    for _ in range(4):
        for column in range(4):
            quarter(column, 4 + column, 8 + column, 12 + column)
        for column in range(4):
            quarter(column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
    return np.stack([word + begin for word, begin in zip(x, first, strict=True)], axis=1).view(np.uint8).reshape(-1)


def test_the_stream_is_that_of_published_test_vectors(apply: Apply) -> None:
    assert apply(np.zeros(BLOCK_BYTES, dtype=np.uint8), (0, 0, 0, 0)).tobytes() == ZEROS_STREAM


@pytest.mark.parametrize("blocks", [1, 127, 128, 129, 1000])
def test_the_kernel_agrees_with_the_definition_for_any_number_of_blocks(apply: Apply, blocks: int) -> None:
    random = np.random.default_rng(blocks)
    key = random.integers(0, 1 << 64, KEY_WORDS, dtype=np.uint64).tolist()
    data = random.integers(0, 256, BLOCK_BYTES * blocks).astype(np.uint8)
    masked = apply(data, key)
    assert np.array_equal(masked, data ^ reference_stream(blocks, key))
    assert np.array_equal(apply(masked, key), data)


def test_another_key_shows_nothing(apply: Apply) -> None:
    data = np.zeros(1 << 20, dtype=np.uint8)
    masked = apply(data, (1, 2, 3, 4))
    for other in ((1, 2, 3, 5), (1 << 63 | 1, 2, 3, 4)):
        bits = np.unpackbits(apply(masked, other))
        assert abs(bits.mean() - 0.5) < 1e-3


def test_nvrtc_compiles_the_kernel_for_a_gpu_that_is_not_here() -> None:
    binary = compiled(SOURCE, "sm_90")
    assert binary.startswith(b"\x7fELF")
    assert KERNEL.encode() in binary


def test_errors_of_nvrtc_are_reported() -> None:
    with pytest.raises(MachineError, match="NVRTC cannot compile .* for sm_90.*undefined"):
        compiled("__global__ void k() { nothing(); }", "sm_90")


@pytest.mark.parametrize(("input_bytes", "blocks"), [(4096, 36), (16 << 20, 32), (64 << 20, 8), (8 << 30, 2)])
def test_large_inputs_have_short_chains(input_bytes: int, blocks: int) -> None:
    assert masked_blocks(input_bytes) == blocks


def test_a_chain_of_any_length_writes_every_masked_block() -> None:
    """Else a worker would see in its memory which blocks changed, and so which call is the last one."""
    size = 1 << 10
    written: list[tuple[int, tuple[int, ...]]] = []
    memory = object.__new__(CudaMemory)
    vars(memory).update(
        _slots=SimpleNamespace(address=0),
        _stride=size,
        _input_bytes=size,
        _device=SimpleNamespace(
            masks=SimpleNamespace(
                prepared=lambda source, target, size: lambda key: written.append((target, tuple(key)))
            )
        ),
        _torch=SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None)),
        _host=SimpleNamespace(data_ptr=lambda: 0),
    )
    blocks = [size * (wire.SLOTS + number) for number in range(masked_blocks(size))]
    for calls in (2, 9, len(blocks)):
        written.clear()
        inputs = SimpleNamespace(data_ptr=lambda: 0)
        staged = memory.stage([(inputs, Plan([], [])) for _ in range(calls)])
        assert [target for target, _ in written] == blocks
        assert len({key for _, key in written}) == len(blocks), "each block has a key of its own"
        assert staged == [[number, *written[number][1]] for number in range(calls)]
