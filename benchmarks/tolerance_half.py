"""Evidence for the tolerance of half-precision outputs: `python benchmarks/tolerance_half.py OUT.jsonl`.

For each computation and dtype, the largest error of an element over its tolerance, of: the reference (torch, every step
rounded), honest programs (all steps in float32 and one rounding; another order of sums), and programs that are
incorrect or less precise than the reference (partial sums rounded, factors in float8, every value off by 1 % or 3 %).
Correct programs must be below 1 on every set, the others above 1. One JSON line each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from cudal1_env.judge.oracle.numerics import limits_of
from cudal1_worker.oracle.tolerance import Limits
from tolerance import ratios, rounded_to_two, unmoved

Half = torch.Tensor
Ways = dict[str, Callable[..., torch.Tensor]]
DTYPES = (torch.bfloat16, torch.float16)


def float8(x: Half) -> Half:
    """Round to float8 (4 exponent bits, 3 significand bits), scaled to its range."""
    scale = x.abs().max().float() / 448.0
    return ((x.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


def products(dtype: torch.dtype, k: int) -> Ways:
    """Return ways to compute a matrix product with k terms."""
    a, b = torch.randn(128, k).to(dtype), torch.randn(k, 128).to(dtype)

    def parts(rounded: bool) -> torch.Tensor:
        out = torch.zeros(128, 128)
        for x, y in zip(a.chunk(8, 1), b.chunk(8, 0), strict=True):
            part = x.float() @ y.float()
            out += part.to(dtype).float() if rounded else part
        return out.to(dtype)

    return {
        "exact": lambda to=Half.double: to(a) @ to(b),
        "reference": lambda to=unmoved: to(a) @ to(b),
        "float32 inside": lambda: (a.float() @ b.float()).to(dtype),
        "parts": lambda: parts(False),
        "parts rounded": lambda: parts(True),
        "float8": lambda: float8(a) @ float8(b),
    }


def rows(dtype: torch.dtype, n: int) -> dict[str, Ways]:
    """Return ways to compute row operations, by operation."""
    x = torch.randn(256, n).to(dtype)
    w, b = torch.randn(n).to(dtype), torch.randn(n).to(dtype)

    def chain(x: Half, w: Half, b: Half) -> torch.Tensor:
        return F.gelu(x * w + b) * 0.5 + x

    def softmax_by_steps(x: Half) -> torch.Tensor:
        e = torch.exp(x - x.amax(1, keepdim=True))
        return e / e.sum(1, keepdim=True)

    def variance_by_steps() -> torch.Tensor:
        centred = x - x.mean(1, keepdim=True)
        return centred / torch.sqrt((centred * centred).mean(1, keepdim=True) + 1e-5) * w + b

    return {
        "softmax": {
            "exact": lambda to=Half.double: to(x).softmax(1),
            "reference": lambda to=unmoved: to(x).softmax(1),
            "float32 inside": lambda: x.float().softmax(1).to(dtype),
            "float8": lambda: float8(x).softmax(1),
        },
        "softmax by steps": {
            "exact": lambda to=Half.double: to(x).softmax(1),
            "reference": lambda to=unmoved: softmax_by_steps(to(x)),
            "float32 inside": lambda: x.float().softmax(1).to(dtype),
            "float8": lambda: float8(x).softmax(1),
        },
        "layer norm": {
            "exact": lambda to=Half.double: F.layer_norm(to(x), (n,), to(w), to(b)),
            "reference": lambda to=unmoved: F.layer_norm(to(x), (n,), to(w), to(b)),
            "float32 inside": lambda: F.layer_norm(x.float(), (n,), w.float(), b.float()).to(dtype),
            "by steps": variance_by_steps,
            "float8": lambda: F.layer_norm(float8(x), (n,), w, b),
        },
        "chain": {
            "exact": lambda to=Half.double: chain(to(x), to(w), to(b)),
            "reference": lambda to=unmoved: chain(to(x), to(w), to(b)),
            "float32 inside": lambda: chain(x.float(), w.float(), b.float()).to(dtype),
            "float8": lambda: chain(float8(x), w, b),
        },
        "sum": {
            "exact": lambda to=Half.double: to(x).sum(1),
            "reference": lambda to=unmoved: to(x).sum(1),
            "float32 inside": lambda: x.float().sum(1).to(dtype),
            "parts rounded": lambda: x.reshape(256, 8, -1).sum(2).sum(1),
            "float8": lambda: float8(x).sum(1),
        },
    }


def main() -> None:
    """Compute, record and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_default_device(options.device)
    cases: list[tuple[torch.dtype, str, Callable[[], Ways]]] = []
    for dtype in DTYPES:
        for k in (64, 512, 4096):
            cases.append((dtype, f"product k={k}", lambda dtype=dtype, k=k: products(dtype, k)))
        for n in (256, 4096):
            for name in rows(dtype, n):
                cases.append((dtype, f"{name} n={n}", lambda dtype=dtype, n=n, name=name: rows(dtype, n)[name]))
    with options.out.open("w") as file, torch.no_grad():
        for dtype, name, make in cases:
            text = str(dtype).removeprefix("torch.")

            def with_shares(make: Callable[[], Ways] = make, dtype: torch.dtype = dtype) -> Ways:
                ways = make()
                exact = ways["exact"]
                return ways | {
                    "off by 1 %": lambda: (1.01 * exact()).to(dtype),
                    "off by 3 %": lambda: (0.97 * exact()).to(dtype),
                }

            found = ratios(with_shares, Limits(*limits_of(text, 0.0, 0.0)))
            line = {
                "dtype": text,
                "case": name,
                "least": rounded_to_two(found, min),
                "most": rounded_to_two(found, max),
            }
            file.write(json.dumps(line) + "\n")
            told = ", ".join(f"{way} {line['least'][way]:g} to {line['most'][way]:g}" for way in found)
            print(f"{text:9s}{name:24s} {told}")


if __name__ == "__main__":
    main()
