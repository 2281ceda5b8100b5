"""Convolutions and pools as Triton kernels with what follows: every setting, dtype and number of dimensions."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from cudal1_data import load_task
from cudal1_data.kernelgen.codegen.products import Tiles
from cudal1_data.kernelgen.codegen.windows import window_program
from cudal1_data.kernelgen.errors import UnsuitableError
from cudal1_data.kernelgen.frontend.reader import read
from cudal1_data.kernelgen.fusion import plan
from cudal1_data.kernelgen.make import variants
from template_programs import built_for_sm_90, errors_in_interpreter, errors_of_forms, reference_of

TOLERANCE = 1e-5
TILES = Tiles(block_m=32, block_n=32, block_k=32, warps=4, stages=2)


def source_of(layer: str, sizes: str, *, forward: str = "self.conv(x)", dtype: str = "float32", more: str = "") -> str:
    """Return a reference that calls a convolution or a pool on maps of these sizes."""
    given = f"{layer[:-1]}, dtype=torch.{dtype})" if layer.startswith("nn.Conv") else layer
    return reference_of(
        f"return {forward}", inputs=f"torch.randn({sizes}).to(torch.{dtype})", init=f"self.conv = {given}\n{more}"
    )


def program_of(source: str) -> str:
    reference = read(source)
    return window_program(reference, plan(reference.roots), TILES)


_SCALE = "self.scale = nn.Parameter(torch.randn(31))"
FORMS = {
    "standard": source_of("nn.Conv2d(5, 20, 3)", "2, 5, 9, 8"),
    "strided": source_of("nn.Conv2d(5, 20, 3, stride=2, padding=1)", "2, 5, 9, 8"),
    "by axis": source_of("nn.Conv2d(4, 18, (3, 5), (2, 1), (1, 4), (1, 2), bias=False)", "2, 4, 8, 13"),
    "length": source_of("nn.Conv1d(6, 40, 4, stride=3, padding=2, dilation=2)", "3, 6, 37"),
    "cube": source_of("nn.Conv3d(3, 16, (3, 2, 1), padding=(1, 0, 0), stride=(1, 2, 1))", "2, 3, 5, 6, 4"),
    "pointwise": source_of("nn.Conv2d(17, 19, 1)", "2, 17, 5, 7"),
    "grouped": source_of("nn.Conv2d(12, 48, 3, padding=1, groups=3)", "2, 12, 6, 7"),
    "depthwise": source_of("nn.Conv2d(6, 6, (3, 1), stride=(2, 1), padding=1, groups=6)", "2, 6, 9, 8"),
    "several of a channel": source_of("nn.Conv1d(5, 15, 3, dilation=2, groups=5)", "2, 5, 17"),
    "few of a group": source_of("nn.Conv3d(6, 8, 2, groups=2)", "2, 6, 4, 5, 4"),
    "transposed": source_of("nn.ConvTranspose2d(5, 20, 3)", "2, 5, 6, 7"),
    "transposed, strided": source_of("nn.ConvTranspose2d(5, 20, 4, 2, 1)", "2, 5, 6, 7"),
    "transposed, by axis": source_of(
        "nn.ConvTranspose2d(8, 16, (3, 5), (2, 3), (1, 2), (1, 0), dilation=(2, 1))", "2, 8, 4, 5"
    ),
    "transposed length": source_of("nn.ConvTranspose1d(6, 33, 3, 2, 1, dilation=2, bias=False)", "3, 6, 20"),
    "transposed cube": source_of("nn.ConvTranspose3d(3, 16, (2, 3, 1), 2, (0, 1, 0), 1)", "2, 3, 3, 4, 3"),
    "transposed, grouped": source_of("nn.ConvTranspose2d(8, 32, 3, 2, 1, 1, groups=2)", "2, 8, 5, 4"),
    "transposed, few of a group": source_of("nn.ConvTranspose3d(8, 8, 3, 2, 1, 1, groups=4)", "1, 8, 3, 4, 3"),
    "transposed depthwise": source_of("nn.ConvTranspose1d(5, 10, 4, 2, groups=5)", "2, 5, 9"),
    "transposed pointwise": source_of("nn.ConvTranspose2d(17, 20, 1, groups=1)", "2, 17, 3, 4"),
    "with a step": source_of("nn.Conv2d(5, 20, 3, padding=1)", "2, 5, 6, 6", forward="torch.tanh(self.conv(x))"),
    "maximum": source_of("nn.MaxPool2d(3, 2, 1)", "2, 3, 9, 8"),
    "maximum, dilated": source_of("nn.MaxPool1d(8, stride=1, padding=4, dilation=3)", "2, 3, 40"),
    "maximum, cube": source_of("nn.MaxPool3d((3, 2, 2), (2, 1, 2), (1, 1, 0), 2)", "2, 2, 9, 6, 7"),
    "average": source_of("nn.AvgPool2d(11)", "2, 3, 25, 36"),
    "average, with steps": source_of(
        "nn.AvgPool1d(8, 1, 4)", "2, 5, 30", forward="F.relu(self.conv(x)) * self.scale + 1", more=_SCALE
    ),
    "average, function": source_of("nn.Identity()", "2, 2, 6, 6, 6", forward="F.avg_pool3d(x, 3, 2, padding=1)"),
    "separable": source_of(
        "nn.Conv2d(6, 6, 3, padding=1, groups=6)",
        "2, 6, 7, 8",
        forward="self.mix(F.relu(self.conv(x)))",
        more="self.mix = nn.Conv2d(6, 24, 1)",
    ),
}

_STEPS = source_of(
    "nn.Conv1d(5, 20, 3)",
    "2, 5, 16",
    forward="F.relu(self.conv(x) + self.bias) * self.scale",
    more="self.bias, self.scale = nn.Parameter(torch.randn(20, 1)), nn.Parameter(torch.randn(14))",
)


def drawn(seed: int) -> str:
    """Return a reference with a convolution of any settings."""
    rng = random.Random(seed)
    rank, transposed = rng.randint(1, 3), rng.random() < 0.5
    groups = rng.choice((1, 1, 2, 3))
    inner, outer = groups * rng.choice((1, 2, 5, 9)), groups * rng.choice((1, 3, 16, 18))

    def by_axis(*choices: int) -> tuple[int, ...]:
        return tuple(rng.choice(choices) for _ in range(rank))

    edges, stride, dilation = by_axis(1, 2, 3, 4), by_axis(1, 1, 2, 3), by_axis(1, 1, 2)
    padding = tuple(rng.randint(0, wide * (edge - 1)) for edge, wide in zip(edges, dilation, strict=True))
    more = [f"output_padding={tuple(rng.randint(0, one - 1) for one in stride)}"] if transposed else []
    bias = rng.random() < 0.5
    words = [f"{inner}, {outer}, {edges}, stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"]
    layer = f"nn.Conv{'Transpose' * transposed}{rank}d({', '.join([*words, *more, f'bias={bias}'])})"
    sides = [wide * (edge - 1) + rng.randint(1, 5) for edge, wide in zip(edges, dilation, strict=True)]
    return source_of(layer, ", ".join(map(str, (rng.randint(1, 3), inner, *sides))))


def drawn_pool(seed: int) -> str:
    """Return a reference with a pool of any settings."""
    rng = random.Random(seed)
    rank, average = rng.randint(1, 3), rng.random() < 0.5
    edges = [rng.randint(2, 5) for _ in range(rank)]
    wide = [1 if average else rng.randint(1, 2) for _ in range(rank)]
    stride, padding = [rng.randint(1, 6) for _ in range(rank)], [rng.randint(0, edge // 2) for edge in edges]
    dilation = "" if average else f", dilation={tuple(wide)}"
    layer = f"nn.{'Avg' if average else 'Max'}Pool{rank}d({tuple(edges)}, {tuple(stride)}, {tuple(padding)}{dilation})"
    sides = [step * (edge - 1) + rng.randint(1, 9) for edge, step in zip(edges, wide, strict=True)]
    return source_of(layer, ", ".join(map(str, (rng.randint(1, 3), rng.randint(1, 4), *sides))))


def templates(source: str) -> set[str]:
    task = load_task("starter/swish_chain").model_copy(update={"source": source, "variants": ()})
    return {one.template for one in variants(task, ("triton",))}


def test_a_convolution_is_a_product_or_a_sum_if_its_groups_have_few_channels() -> None:
    product, depthwise = program_of(FORMS["grouped"]), program_of(FORMS["depthwise"])
    assert 'acc = tl.dot(left, right, acc, input_precision="ieee")\n' in product
    assert "tl.dot(" not in depthwise
    assert "    for term in range(3):\n" in depthwise
    halves = program_of(source_of("nn.Conv2d(8, 16, 3)", "2, 8, 9, 9", dtype="float16"))
    assert "acc = tl.dot(left, right, acc)\n" in halves


def test_what_follows_a_convolution_is_in_its_kernel() -> None:
    program = program_of(FORMS["with a step"])
    assert program.count("@triton.jit") == 1
    assert "self.conv(" not in program
    assert program_of(FORMS["separable"]).count("@triton.jit") == 2


def test_convolutions_stay_in_pytorch_where_they_are_not_alone_or_not_padded_with_zeros() -> None:
    assert templates(FORMS["standard"]) == {"triton-window"}
    norm = source_of(
        "nn.Conv2d(4, 8, 3)", "2, 4, 9, 8", forward="self.norm(self.conv(x))", more="self.norm = nn.GroupNorm(2, 8)"
    )
    assert templates(norm) == {"triton-rows"}
    assert templates(_STEPS) == {"triton-elements"}
    three = source_of("nn.Conv2d(4, 4, 3)", "2, 4, 9, 8", forward="self.conv(self.conv(self.conv(x)))")
    assert templates(three) == set()
    assert templates(source_of('nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect")', "2, 4, 9, 8")) == set()
    for settings in ("3, 2, 1, False, False", "3, 2, 1, False, True, 5", "3, 2, 1, count_include_pad=False"):
        assert templates(source_of(f"nn.AvgPool2d({settings})", "2, 4, 9, 8")) == set(), settings
    with pytest.raises(UnsuitableError, match="has more than the 2147418112 elements"):
        program_of(source_of("nn.Conv2d(1, 1024, 1)", "64, 1, 256, 256"))


@pytest.mark.slow
def test_triton_builds_convolutions_for_sm_90(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    paths: list[Path] = []
    for name in ("standard", "cube", "grouped", "depthwise", "transposed, grouped", "transposed, few of a group"):
        for tiles in (TILES, Tiles(block_m=128, block_n=64, block_k=32, warps=8, stages=2, precision="tf32x3")):
            reference = read(FORMS[name])
            program = window_program(reference, plan(reference.roots), tiles)
            paths.append(tmp_path / f"build_{len(paths)}.json")
            paths[-1].write_text(json.dumps({"reference": FORMS[name], "source": program}))
    assert built_for_sm_90(*paths) == {"kernels": len(paths), "said": {}}


@pytest.mark.slow
def test_convolutions_of_every_setting_are_correct_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    draws = {f"draw {seed}": drawn(seed) for seed in range(30)}
    draws |= {f"pool {seed}": drawn_pool(seed) for seed in range(20)}
    errors = errors_of_forms(FORMS | draws, tmp_path)
    assert {name for name in errors if name.endswith(", window")} >= {f"{name}, window" for name in FORMS}
    assert {name: error for name, error in errors.items() if not error <= TOLERANCE} == {}


@pytest.mark.slow
def test_convolutions_of_halves_err_no_more_than_pytorch_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton")
    paths: list[Path] = []
    for dtype in ("float16", "bfloat16"):
        for number, layer in enumerate(("nn.Conv2d(12, 40, 3, padding=1)", "nn.Conv2d(12, 12, 3, groups=12)")):
            paths.append(tmp_path / f"{dtype}_{number}_own.py")
            paths[-1].write_text(source_of(layer, "2, 12, 10, 9", dtype=dtype))
    errors = errors_in_interpreter(*map(str, paths))
    assert set(errors) == set(map(str, paths))
    assert {name: error for name, error in errors.items() if not error <= 1.1} == {}
