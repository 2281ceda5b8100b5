"""Masks over the inputs of timed calls on a GPU: pseudorandom byte streams, each defined by a key.

The judge writes the inputs of all calls of a chain before the clock runs, each set under a mask with its own key. The
key releases a call. So the judge's release takes the same time for any input size, and a program cannot use a call's
inputs before it. Mask and inputs are combined by exclusive or: the same kernel applies and removes a mask.

The stream is ChaCha's with 8 rounds, 256-bit keys and nonce 0 (D. J. Bernstein, "ChaCha, a variant of Salsa20", 2008).
No attack on 8 rounds is known. It takes about six integer operations per byte, as long as the memory accesses.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from cudal1_worker import vmm

KEY_WORDS = 4
"""Number of 64-bit words of a key."""
KERNEL = "mask"
_THREADS = 128
SOURCE = r"""
typedef unsigned int word;
struct __align__(16) quad { word x, y, z, w; };

__device__ __forceinline__ word turn(word x, int bits) { return (x << bits) | (x >> (32 - bits)); }

__device__ __forceinline__ void quarter(word& a, word& b, word& c, word& d) {
    a += b; d = turn(d ^ a, 16);
    c += d; b = turn(b ^ c, 12);
    a += b; d = turn(d ^ a, 8);
    c += d; b = turn(b ^ c, 7);
}

/* Blocks of 64 bytes from source to target, each combined with its block of the stream. A thread makes a block of the
   stream; threads then share what they made, so that neighbours read and write neighbouring memory. */
extern "C" __global__ void mask(const quad* source, quad* target, word blocks,
                                word k0, word k1, word k2, word k3, word k4, word k5, word k6, word k7) {
    __shared__ word stream[THREADS * 17];
    for (size_t first = (size_t)blockIdx.x * THREADS; first < blocks; first += (size_t)gridDim.x * THREADS) {
        const word begin[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, k0, k1, k2, k3, k4, k5, k6, k7,
                                (word)first + threadIdx.x, 0, 0, 0};
        word x[16];
        #pragma unroll
        for (int i = 0; i < 16; ++i) x[i] = begin[i];
        #pragma unroll
        for (int round = 0; round < 8; round += 2) {
            quarter(x[0], x[4], x[8], x[12]);
            quarter(x[1], x[5], x[9], x[13]);
            quarter(x[2], x[6], x[10], x[14]);
            quarter(x[3], x[7], x[11], x[15]);
            quarter(x[0], x[5], x[10], x[15]);
            quarter(x[1], x[6], x[11], x[12]);
            quarter(x[2], x[7], x[8], x[13]);
            quarter(x[3], x[4], x[9], x[14]);
        }
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 16; ++i) stream[threadIdx.x * 17 + i] = x[i] + begin[i];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            const word piece = i * THREADS + threadIdx.x;
            if (first + piece / 4 < blocks) {
                const word* mine = stream + piece / 4 * 17 + piece % 4 * 4;
                quad data = source[first * 4 + piece];
                data.x ^= mine[0];
                data.y ^= mine[1];
                data.z ^= mine[2];
                data.w ^= mine[3];
                target[first * 4 + piece] = data;
            }
        }
    }
}
""".replace("THREADS", str(_THREADS))
BLOCK_BYTES = 64
"""Masked sizes are multiples of this many bytes; addresses are multiples of 16."""
_MAX_GRID = 4096


class Masks:
    """The kernel, loaded into the current context."""

    def __init__(self, binary: bytes) -> None:
        self._module: Any = vmm.check(vmm.driver.cuModuleLoadData(binary))  # unloaded with this object
        function = vmm.check(vmm.driver.cuModuleGetFunction(self._module, KERNEL.encode()))
        self._function = ctypes.c_void_p(int(function))
        self._launch: Any = ctypes.CDLL("libcuda.so.1").cuLaunchKernel  # avoids the per-call cost of cuda-bindings
        self._launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]

    def prepared(self, source: int, target: int, size_bytes: int) -> Callable[[Sequence[int]], None]:
        """Return a function that starts combining bytes with a key's stream, on the default CUDA stream.

        Everything except the key is prepared here, because a worker removes a mask while the clock runs.

        Args:
            source: Address.
            target: Address.
            size_bytes: A multiple of `BLOCK_BYTES`.

        Returns:
            A function of a key (`KEY_WORDS` 64-bit numbers). It raises `CudaError` if the driver refuses the launch.
        """
        blocks = size_bytes // BLOCK_BYTES
        values = (ctypes.c_uint64 * (3 + KEY_WORDS))(source, target, blocks)
        begin = ctypes.addressof(values)
        places = [begin, begin + 8, begin + 16, *(begin + 24 + 4 * half for half in range(2 * KEY_WORDS))]
        grid = min(_MAX_GRID, -(-blocks // _THREADS))
        launch = functools.partial(
            self._launch, self._function, grid, 1, 1, _THREADS, 1, 1, 0, None, (ctypes.c_void_p * len(places))(*places)
        )

        def start(key: Sequence[int]) -> None:
            values[3:] = key
            if status := launch(None):
                raise vmm.CudaError(f"cuLaunchKernel failed with error {status} for the mask kernel")

        return start
