"""Evidence for the tolerance's constants: `python benchmarks/tolerance.py OUT.jsonl [--device cuda]`.

For each computation, the largest error of an element over its tolerance (`cudal1_worker.oracle.tolerance`), of: the
reference (torch in float32), honest float32 programs that sum in another way (sequential, split-K, Winograd), and
programs that are not float32 inside (TF32, bfloat16, half). Honest programs must be below 1 on every set, the others
above 1. On a GPU, cuBLAS and cuDNN compute the reference; the hardware's TF32 and cuDNN's choice in benchmark mode are
measured, too. One JSON line each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import torch
from cudal1_env.judge import JudgeSettings
from cudal1_env.judge.oracle.numerics import limits_of
from cudal1_worker.oracle.reference_error import error_of, moved_by
from cudal1_worker.oracle.tolerance import PLACES, Blocks, Draw, Limits, Profile, Seen, enough, expected
from cudal1_worker.oracle.unrounded import Unrounded

Floats = torch.Tensor


def sequential_product(a: Floats, b: Floats) -> Floats:
    """Sum over k sequentially in float32."""
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
    """Let the libraries of a GPU round to TF32, or benchmark convolution algorithms."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = benchmark
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False


def under(compute: Callable[[], Floats], *, tf32: bool = False, benchmark: bool = False) -> Callable[[], Floats]:
    """Return the same computation under the settings of `hardware`."""

    def changed() -> Floats:
        with hardware(tf32=tf32, benchmark=benchmark):
            return compute()

    return changed


def products(k: int, positive: bool) -> dict[str, Callable[..., Floats]]:
    """Return ways to compute a matrix product with k terms."""
    a, b = torch.randn(96, k), torch.randn(k, 96)
    if positive:
        a, b = a.abs(), b.abs()
    return {
        "exact": lambda to=Floats.double: to(a) @ to(b),
        "reference": lambda to=unmoved: to(a) @ to(b),
        "sequential": lambda: sequential_product(a, b),
        "split_k": lambda: split_k_product(a, b),
        "tf32": lambda: rounded(a, 10) @ rounded(b, 10),
        "bfloat16": lambda: a.bfloat16().float() @ b.bfloat16().float(),
        "half": lambda: a.half().float() @ b.half().float(),
        **({"tf32_hardware": under(lambda: a @ b, tf32=True)} if a.is_cuda else {}),
    }


def sums(n: int, positive: bool) -> dict[str, Callable[..., Floats]]:
    """Return ways to sum n numbers (eight sums, to average out chance)."""
    x = torch.rand(8, n) if positive else torch.randn(8, n)
    return {
        "exact": lambda to=Floats.double: to(x).sum(1),
        "reference": lambda to=unmoved: to(x).sum(1),
        "sequential": lambda: torch.from_numpy(np.cumsum(x.cpu().numpy(), axis=1, dtype=np.float32)[:, -1].copy()).to(
            x.device
        ),
        "split_k": lambda: x.reshape(8, -1, 16).sum(1).sum(1),
        "bfloat16": lambda: x.bfloat16().float().sum(1).bfloat16().float(),
        "half": lambda: x.half().float().sum(1).half().float(),
    }


def convolutions(channels: int, size: int = 34, filters: int = 16) -> dict[str, Callable[..., Floats]]:
    """Return ways to convolve."""
    x, w = torch.randn(channels, size, size), torch.randn(filters, channels, 3, 3)

    def conv(x: Floats, w: Floats) -> Floats:
        return torch.nn.functional.conv2d(x[None], w)[0]

    return {
        "exact": lambda to=Floats.double: conv(to(x), to(w)),
        "reference": lambda to=unmoved: conv(to(x), to(w)),
        "winograd": lambda: winograd(x, w),
        "tf32": lambda: conv(rounded(x, 10), rounded(w, 10)),
        "bfloat16": lambda: conv(x.bfloat16().float(), w.bfloat16().float()),
        **({"tf32_hardware": under(lambda: conv(x, w), tf32=True)} if x.is_cuda else {}),
        **({"cudnn_chosen": under(lambda: conv(x, w), benchmark=True)} if x.is_cuda else {}),
    }


def unmoved(value: Floats) -> Floats:
    """Return the value unchanged."""
    return value


def reference_error(ways: dict[str, Callable[..., Floats]], exact: Floats, *to: Callable[[Floats], Floats]) -> Floats:
    """Return the reference's error of each element, flat, as in `cudal1_worker.oracle.oracle.Oracle.errors`."""
    with Unrounded() as mode:
        found = ways["reference"](*to)
    return mode.error(found, exact, error_of(found, exact))


def nearby(ways: dict[str, Callable[..., Floats]], exact: Floats, seed: int, limits: Limits) -> Floats:
    """Return the expected error of each element, flat, as in `cudal1_worker.oracle.oracle.Oracle.nearby`."""
    result = torch.zeros(exact.numel(), dtype=torch.float64)
    for number in range(3):

        def moved(value: Floats, number: int = number) -> Floats:
            generator = torch.Generator(value.device).manual_seed(10**6 * (number + 1) + seed + value.shape[0])
            return moved_by(value, PLACES, generator, own=True).to(value.dtype)

        right = ways["exact"](lambda value: moved(value).double())
        error, change = reference_error(ways, right, moved), error_of(right, exact)
        result = torch.maximum(result, expected(error, change, exact.reshape(-1), limits))
    return result


def ratios(
    make: Callable[[], dict[str, Callable[..., Floats]]], limits: Limits, seeds: int = 4
) -> dict[str, list[float]]:
    """Return the largest error of an element over its tolerance, for each way and set.

    Args:
        make: Returns the ways to compute one set, including `reference` and `exact`. These two take a function that
            converts inputs.
        limits: Parameters that turn errors into tolerances.
        seeds: Number of sets.
    """
    draws: list[Draw] = []
    shape: tuple[int, ...] = ()
    while len(draws) < (enough([Blocks(shape).width]) if draws else 1):
        torch.manual_seed(1000 + len(draws))
        ways = make()
        exact = ways["exact"]()
        shape = tuple(exact.shape)
        draws.append(Draw.of(exact.reshape(-1), reference_error(ways, exact)))
    profile = Profile(shape, draws, largest=limits.largest)
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        ways = make()
        exact = ways["exact"]()
        allowed = torch.empty(exact.numel(), dtype=torch.float64)
        error = reference_error(ways, exact)
        profile.of_all(allowed, Seen(exact.reshape(-1), error, nearby(ways, exact, seed, limits)), limits)
        del ways["exact"]
        for way, compute in ways.items():
            found.setdefault(way, []).append(float((error_of(compute(), exact) / allowed).max()))
    return found


def main() -> None:
    """Compute, record and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_default_device(options.device)
    with hardware():
        pass  # on exit, TF32 is off by default
    cases: dict[str, Callable[[], dict[str, Callable[..., Floats]]]] = {}
    for positive in (False, True):
        sign = "positive" if positive else "signed"
        for k in (64, 512, 4096):
            cases[f"product k={k} {sign}"] = lambda k=k, positive=positive: products(k, positive)
        for n in (4096, 65536, 1048576):
            cases[f"sum n={n} {sign}"] = lambda n=n, positive=positive: sums(n, positive)
    for channels in (8, 64):
        cases[f"convolution c={channels}"] = lambda channels=channels: convolutions(channels)
    cases["convolution c=64, a million outputs"] = lambda: convolutions(64, 130, 64)
    settings = JudgeSettings()
    limits = Limits(*limits_of("float32", settings.error_factor, settings.error_floor_ulps))
    with options.out.open("w") as file, torch.no_grad():
        for name, make in cases.items():
            found = ratios(make, limits)
            line = {"case": name, "least": rounded_to_two(found, min), "most": rounded_to_two(found, max)}
            file.write(json.dumps(line) + "\n")
            print(f"{name:36s}", ", ".join(f"{way} {line['least'][way]:g} to {line['most'][way]:g}" for way in found))


def rounded_to_two(found: dict[str, list[float]], choose: Callable[[list[float]], float]) -> dict[str, float]:
    """Return the smallest or largest value of each way, with two digits."""
    return {way: float(f"{choose(ones):.2g}") for way, ones in found.items()}


if __name__ == "__main__":
    main()
