"""Where the tolerance's two constants come from: `python benchmarks/tolerance.py OUT.jsonl [--device cuda]`.

For each computation the largest error against float64, over the largest magnitude of the answer, of: the reference
(torch in float32), honest float32 programs that sum in another way (sequential, split-K, Winograd), and programs that
are not float32 inside (TF32, bfloat16, half). `c` must lie above the honest ratios to the reference's error, and below
the others'; where the reference is exact or lucky the floor in units of the last place decides. On a GPU the reference
is cuBLAS's and cuDNN's, and beside the imitations of TF32 stand the hardware's own and what cuDNN chooses when it may
try. One JSON line each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import torch

Floats = torch.Tensor
EPSILON = 2.0**-23


def sequential_product(a: Floats, b: Floats) -> Floats:
    """Sum over k one after another in float32."""
    out = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        out += a[:, k : k + 1] * b[k]
    return out


def split_k_product(a: Floats, b: Floats) -> Floats:
    """Sum over 16 parts of k, then over the parts."""
    parts = [x @ y for x, y in zip(a.chunk(16, 1), b.chunk(16, 0), strict=True)]
    out = torch.zeros_like(parts[0])
    for part in parts:
        out += part
    return out


def rounded(x: Floats, bits: int) -> Floats:
    """Round to a number of explicit significand bits (10 for TF32)."""
    mantissa, exponent = torch.frexp(x.double())
    return torch.ldexp(torch.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent).float()


def winograd(x: Floats, w: Floats) -> Floats:
    """3 x 3 convolution of one image by F(4 x 4, 3 x 3) (Lavin and Gray 2015), in float32, sizes a multiple of 4."""
    bt = torch.tensor(
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        dtype=torch.float32,
    )
    g = torch.tensor(
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ],
        dtype=torch.float32,
    )
    at = torch.tensor(
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], dtype=torch.float32
    )
    tiles = x.unfold(1, 6, 4).unfold(2, 6, 4)  # channels, rows, columns, 6, 6
    v = bt @ tiles @ bt.T
    u = g @ w @ g.T
    m = torch.einsum("ochw,cijhw->oijhw", u, v)
    y = at @ m @ at.T
    return y.permute(0, 1, 3, 2, 4).reshape(w.shape[0], 4 * tiles.shape[1], 4 * tiles.shape[2])


@contextlib.contextmanager
def hardware(*, tf32: bool = False, benchmark: bool = False) -> Generator[None]:
    """Let the libraries of a GPU round to TF32, or try which way to convolve is fastest."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = benchmark
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False


def under(compute: Callable[[], Floats], *, tf32: bool = False, benchmark: bool = False) -> Callable[[], Floats]:
    """The same computation as the libraries do it then."""

    def changed() -> Floats:
        with hardware(tf32=tf32, benchmark=benchmark):
            return compute()

    return changed


def products(k: int, positive: bool) -> dict[str, Callable[[], Floats]]:
    """Ways to compute a matrix product with k terms."""
    a, b = torch.randn(96, k), torch.randn(k, 96)
    if positive:
        a, b = a.abs(), b.abs()
    return {
        "exact": lambda: a.double() @ b.double(),
        "reference": lambda: a @ b,
        "sequential": lambda: sequential_product(a, b),
        "split_k": lambda: split_k_product(a, b),
        "tf32": lambda: rounded(a, 10) @ rounded(b, 10),
        "bfloat16": lambda: a.bfloat16().float() @ b.bfloat16().float(),
        "half": lambda: a.half().float() @ b.half().float(),
        **({"tf32_hardware": under(lambda: a @ b, tf32=True)} if a.is_cuda else {}),
    }


def sums(n: int, positive: bool) -> dict[str, Callable[[], Floats]]:
    """Ways to sum n numbers (eight sums, so that luck evens out)."""
    x = torch.rand(8, n) if positive else torch.randn(8, n)
    return {
        "exact": lambda: x.double().sum(1),
        "reference": lambda: x.sum(1),
        "sequential": lambda: torch.from_numpy(np.cumsum(x.cpu().numpy(), axis=1, dtype=np.float32)[:, -1].copy()).to(
            x.device
        ),
        "split_k": lambda: x.reshape(8, -1, 16).sum(1).sum(1),
        "bfloat16": lambda: x.bfloat16().float().sum(1).bfloat16().float(),
        "half": lambda: x.half().float().sum(1).half().float(),
    }


def convolutions(channels: int) -> dict[str, Callable[[], Floats]]:
    """Ways to convolve."""
    x, w = torch.randn(channels, 34, 34), torch.randn(16, channels, 3, 3)

    def conv(x: Floats, w: Floats) -> Floats:
        return torch.nn.functional.conv2d(x[None], w)[0]

    return {
        "exact": lambda: conv(x.double(), w.double()),
        "reference": lambda: conv(x, w),
        "winograd": lambda: winograd(x, w),
        "tf32": lambda: conv(rounded(x, 10), rounded(w, 10)),
        "bfloat16": lambda: conv(x.bfloat16().float(), w.bfloat16().float()),
        **({"tf32_hardware": under(lambda: conv(x, w), tf32=True)} if x.is_cuda else {}),
        **({"cudnn_chosen": under(lambda: conv(x, w), benchmark=True)} if x.is_cuda else {}),
    }


def main() -> None:
    """Compute, record, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_default_device(options.device)
    with hardware():
        pass  # no TF32 but where it is asked for
    cases: dict[str, Callable[[], dict[str, Callable[[], Floats]]]] = {}
    for positive in (False, True):
        sign = "positive" if positive else "signed"
        for k in (64, 512, 4096):
            cases[f"product k={k} {sign}"] = lambda k=k, positive=positive: products(k, positive)
        for n in (4096, 65536, 1048576):
            cases[f"sum n={n} {sign}"] = lambda n=n, positive=positive: sums(n, positive)
    for channels in (8, 64):
        cases[f"convolution c={channels}"] = lambda channels=channels: convolutions(channels)
    with options.out.open("w") as file, torch.no_grad():
        for name, make in cases.items():
            worst: dict[str, float] = {}
            for seed in range(4):
                torch.manual_seed(seed)
                ways = make()
                exact = ways.pop("exact")()
                for way, compute in ways.items():
                    error = float((compute().double() - exact).abs().max() / exact.abs().max())
                    worst[way] = max(worst.get(way, 0.0), error)
            line = {
                "case": name,
                "ulps": {way: round(error / EPSILON, 2) for way, error in worst.items()},
                "over_reference": {way: round(error / worst["reference"], 1) for way, error in worst.items()},
            }
            file.write(json.dumps(line) + "\n")
            ratios = ", ".join(f"{way} {line['over_reference'][way]:g} ({line['ulps'][way]:g} ulp)" for way in worst)
            print(f"{name:28s} {ratios}")


if __name__ == "__main__":
    main()
