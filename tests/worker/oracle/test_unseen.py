"""A task whose outputs would not show a product in lower precision pays nothing above 1, audited or not."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never, cast

import pytest
import torch
from cases import mostly_slow
from cudal1_data import Task, load_task
from cudal1_env.gate import AuditReport, TaskAudit, reference_sha256
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.measure import record
from cudal1_env.judge.measure.case import Built, Case
from cudal1_env.judge.measure.record import Seen
from cudal1_env.judge.measure.timing.interference import Alone
from cudal1_env.judge.measure.timing.overhead import Overhead
from cudal1_env.judge.measure.timing.trial import TrialResult
from cudal1_env.judge.oracle import pool as pool_file
from cudal1_env.records import PROTOCOL_VERSION, Speedup
from cudal1_env.stats import TrialSamples
from cudal1_worker.oracle import dependence, questions
from cudal1_worker.oracle.calls import chosen, timed
from cudal1_worker.oracle.oracle import Oracle
from cudal1_worker.oracle.questions import Questions
from cudal1_worker.oracle.unseen import Unseen
from cudal1_worker.program.module import Attempt

EXAMPLES = Path(__file__).parents[3] / "examples" / "optimize"
SHOWN = {
    "columns behind a limit that nothing passes": "torch.minimum((x @ w).abs(), t - 2.0 * (torch.arange(64) % 2))",
    "a product alone": "x @ w",
    "two products": "torch.relu(x @ w) @ w",
    "scores of attention": "torch.softmax(x @ w, -1) @ w",
    "beside a sine": "torch.cat([x @ w, torch.sin(4000 * t)], -1)",
    "a product of signs": "x.sign() @ w.sign()",  # lower precision loses nothing there
    "rounded afterwards": "(x @ w).bfloat16()",
    "rounded to integers": "(x @ w).round()",
    "bytes": "(8 * torch.relu(x @ w)).clamp(max=255).to(torch.uint8)",
    "many largest places": "(big @ w).argmax(-1)",
    "no product": "x.exp()",
    "an entropy": "(torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(-1)",
    "a softmax by hand": "torch.nn.functional.normalize((x - x.amax(-1, keepdim=True)).exp(), p=1, dim=-1) @ w",
    "a norm": "torch.nn.functional.layer_norm(x, (64,))",
    "keys under a mask": "torch.softmax((x @ w).masked_fill(torch.arange(64) >= 40, -torch.inf), -1) @ t",
    "keys before each query": "torch.softmax((x @ w / 8).masked_fill(torch.ones(64, 64).triu(1) > 0, -9e9), -1) @ t",
    "places only": "torch.cat([t.gather(1, x.argsort(-1)), t.gather(1, w.topk(4).indices)], -1)",
    "the last row": "torch.relu(x @ w)[-1]",
    "a norm of groups, whose statistics are further results": "torch.nn.functional.group_norm(x.view(4, 16, 64), 4)",
    "a norm in half precision": "torch.nn.functional.layer_norm(x.bfloat16(), (64,))",
    "zeros like an input": "x.exp() + torch.zeros_like(x).mul(2)",
    "signs of squares": "torch.nn.functional.lp_pool1d(x[None], 2, 2)",
    "infinities": "(x @ w).masked_fill(x > 1, -torch.inf)",
    "a softmax by hand in half precision": (
        "(lambda h: (h - h.amax(-1, keepdim=True)).exp() / (h - h.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True))"
        "(x.bfloat16())"
    ),
    "a logarithm of a sum by hand": "x.amax(-1) + (x - x.amax(-1, keepdim=True)).exp().sum(-1).log()",
    "places of maxima": "t.gather(1, big.view(64, -1).max(-1).indices[:, None] % 64) + t",
    "a scale that has a least value": "x / x.amax(-1, keepdim=True).clamp(min=1e-8)",
    "a limit in front of a product": "(x @ w).clamp(-4, 4) @ w",
    "a limit of half of the elements": "torch.relu(x @ w / 8) @ w",
    "a limit in front of none": "(x @ w).clamp(-999, 999)",
    "a curved function": "torch.sin((x.bfloat16() @ w.bfloat16()) / 8) @ w.bfloat16()",
    "a mean of squares": "((x - w) ** 2).mean()",
    "a function of equal rows": "x[:1].expand(64, 64).exp() + t",
    "work on a constant, which a program may contain": (
        "t + torch.linalg.qr(torch.linspace(0, 1, 65536).view(256, 256).sin() + torch.eye(256))[0][:64, :64]"
    ),
    "rows that a mask chooses": "(lambda m: t.index_put((m,), x[m] @ w))(t[:, 0] > 0.5)",
    "a few numbers of Python": "torch.cat([y * float(y.max()) for y in x.split((t[0, :4] * 0 + 16).int().tolist())])",
    "a sparse product": "torch.sparse.mm((x * (x > 1)).to_sparse(), w) + t",
    "a choice that no input changes": "torch.relu(x * x @ w.abs()) @ w",
    "a norm by hand, in half precision, before a product": (
        "(lambda h: (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)) @ w.bfloat16())(x.bfloat16())"
    ),
    "a gate in half precision before a product": (
        "(lambda h: (h * h.mean(-1, keepdim=True).sigmoid()) @ w.bfloat16())(x.bfloat16())"
    ),
    "products of complex numbers": "torch.view_as_real(torch.complex(x, t) @ torch.complex(w, t))",
}
UNSEEN = {
    "few largest places": "(x[:4] @ w).argmax(-1)",
    "added to a sine": "x @ w * 1e-3 + torch.cos(4000 * t)",
    "three of five columns": (
        "(x @ w) * torch.where(torch.arange(64) % 5 < 3, 1e-3, 1.0) + torch.cos(4000 * t) * (torch.arange(64) % 5 < 3)"
    ),
    "the first of two": "torch.cat([(x @ w) * 1e-4 + torch.cos(4000 * t), x @ w], -1)",
    "complex numbers": "(torch.complex(x, t) @ torch.complex(w, t)).abs() * 1e-3 + torch.cos(4000 * t)",
}
LEFT_OUT = {
    "positive columns behind a limit that no draw passes": (
        "(lambda h: torch.where(torch.arange(64) % 2 == 0, h, h.clamp(max=1.0)))(torch.addmm(t + 100.0, x, w))",
        "of dimension 1 of step",
    ),
    "columns behind a limit that no draw passes": (
        "torch.relu(x @ w - 90.0 * (torch.arange(64) % 2)) + t",
        "what has no gradient of dimension 1 of step 1 (mm)",
    ),
    "a branch within a rounding": ("x + 2e-8 * (x @ w)", "step 1 (mm)"),
    "a sum that decides nothing": (
        "x * (100 / (x * x).sum().sqrt()).clamp(max=1.0)",
        "), if it was another call's",  # the product or the sum, whichever was drawn
    ),
    "terms that fade": (
        "(x * 0.5 ** torch.arange(64)).sum(-1)",
        "the least elements of | (sum) from three quarters of",
    ),
    "terms of which float64 holds nothing": (
        "(x * 1e-3 ** torch.arange(64)).sum(-1)",
        "the least elements of | (sum) from three quarters of",
    ),
    "every eighth column": (
        "(x * torch.where(torch.arange(64) % 8 == 3, 1.0, 1e-9)).sum(-1)",
        "the least elements of",
    ),
    "columns behind a function without a derivative": (
        "torch.special.scaled_modified_bessel_k0(x.abs() + 1) * torch.where(torch.arange(64) % 8 == 3, 1.0, 1e-9) + t",
        "of step",
    ),
    "columns that are written to": (
        "(lambda y: y.mul_(torch.where(torch.arange(64) % 8 == 3, 1.0, 1e-9)).add_(t))(x.exp())",
        "the least elements of step 1 (exp)",
    ),
    "some of the few columns behind a mask": (
        "x + (lambda k: torch.where(k > 59, x.exp() * torch.where(k > 61, 1.0, 1e-9), 0 * t))(torch.arange(64))",
        "the least elements of step",
    ),
    "columns behind integers": (
        "nn.functional.embedding((t * 64).long()[0], w).exp() * torch.where(torch.arange(64) % 8 == 3, 1.0, 1e-9) + t",
        "if it was another call's",
    ),
    "columns behind detached values": (
        "(lambda h, k: t + h + (torch.where(k, h, 1e-9 * h) - h).detach())"
        "(x.exp(), torch.arange(64) ** 2 * 7 % 37 < 11)",
        "the least elements of step 1 (exp)",
    ),
    "columns of complex numbers": (
        "t + (torch.complex(x, w).exp() * torch.where(torch.arange(64) ** 2 * 7 % 37 < 11, 1.0, 1e-9)).real",
        "if it was another call's",
    ),
    "iterations that converge": (
        "functools.reduce(lambda y, _: 0.5 * x + 0.25 * (y.roll(1) + y.roll(-1)), range(60), 0 * x)",
        "if it was another call's",
    ),
    "taps that fade": (
        "nn.functional.conv1d(x[:, None], 0.1 ** (torch.arange(33) - 16).abs().view(1, 1, 33).to(x.dtype), padding=16)",
        "operand 1 of step 5 (convolution) left out",
    ),
    "tiles that fade": (
        "(t.repeat(4, 4) * (-0.5 * (torch.arange(256)[:, None] - torch.arange(256)).abs()).exp()) @ x.repeat(4, 1)",
        "the least ",  # elements of a step in front of the product, or tiles of its operand
    ),
    "experts with small weights": (
        "torch.einsum('te,ted->td', (9 * x[:, :8]).softmax(-1), (x[:, None] * w[:8]).exp())",
        "the least elements of step",
    ),
    "experts in views that are written to": (
        "(lambda y: [one.mul_(0.5) for one in y.unbind(1)] and "
        "torch.einsum('te,ted->td', (9 * x[:, :8]).softmax(-1), y))((x[:, None] * w[:8]).exp())",
        "the least elements of step",
    ),
    "experts at a given place": (
        "(lambda y: torch.einsum('te,ted->td', (9 * x[:, :8]).softmax(-1), torch.exp(x[:, None] * w[:8], out=y)))"
        "(x.new_empty(64, 8, 64))",
        "the least elements of step",
    ),
    "experts in inference mode": (
        "torch.inference_mode()(lambda: "
        "torch.einsum('te,ted->td', (9 * x[:, :8]).softmax(-1), (x[:, None] * w[:8]).exp()))()",
        "the least elements of step",
    ),
    "pairs that are far apart": (
        "(-(99 * x[:, :1] - 99 * w.view(1, -1)).square()).exp().sum(-1, keepdim=True) + t",
        "the least half of the elements of step",
    ),
    "a number of Python that takes long": (
        "(lambda v: t + sum(__import__('math').sin(k * v) for k in range(20000)))(float(x[0, 0]))",
        "(Python, or a library that Python calls)",
    ),
    "numpy behind an object of its own": (
        "(lambda o: t + float(__import__('numpy').sort(__import__('numpy').from_dlpack(o), None)[0] < -9e9))"
        "(type('O', (), {'__dlpack__': lambda o, **k: torch.utils.dlpack.to_dlpack(big),"
        " '__dlpack_device__': lambda o: (1, 0)})())",
        "(Python, or a library that Python calls)",
    ),
    "a function of Python": ("x.clone().apply_(lambda v: v + 1)", "(Tensor.apply_)"),
    "experts behind a rounding": (
        "(8 * torch.einsum('te,ted->td', (40 * x[:, :8]).softmax(-1), (x[:, None] * w[:8]).exp())).round()",
        "the least elements of step",
    ),
    "experts behind a rounding in place": (
        "torch.einsum('te,ted->td', (40 * x[:, :8]).softmax(-1), (x[:, None] * w[:8]).exp()).mul_(8).round_()",
        "the least elements of step",
    ),
    "experts behind a comparison": (
        "torch.einsum('te,ted->td', (40 * x[:, :8]).softmax(-1), (x[:, None] * w[:8]).exp()) > t",
        "the least elements of step",
    ),
    "experts behind bytes": (
        "torch.einsum('te,ted->td', (40 * x[:, :8]).softmax(-1), (x[:, None] * w[:8]).tanh()).mul(9).to(torch.int8)",
        "the least elements of step",
    ),
    "numpy": ("torch.from_numpy(__import__('numpy').sort(big.numpy(), 0)[:64].copy()) + t", "(Tensor.numpy)"),
    "a check in numpy that always passes": (
        "torch.stack([y * y.mul(float(abs(x.numpy()).max()) < 9e9) for y in x for _ in range(9)])",
        "(Tensor.numpy)",
    ),
    "another thread": (
        "__import__('concurrent.futures', fromlist=['x']).ThreadPoolExecutor(1).submit(big.sort, 0).result()[0][:64]",
        "(another thread)",
    ),
    "operators on lists": (
        "(lambda y: [torch._foreach_mul_([y], 0.999) for _ in range(20)] and y[:64] + t)(big.clone())",
        "(_foreach_mul)",
    ),
    "a mean by a pool": (
        "(lambda y: y[:64] * nn.functional.avg_pool1d(y.T, 65536).T.sigmoid())((big.abs() * (t[0] + 0.2)).bfloat16())",
        "(avg_pool2d) from three quarters of dimension",
    ),
    "a sum at one place": (
        "(lambda y: y[:64] * y.new_zeros(1, 64).index_add(0, torch.zeros(65536).long(), y / 65536).sigmoid())"
        "((big.abs() * (t[0] + 0.2)).bfloat16())",
        "(index_add) from three quarters of dimension 0",
    ),
    "a layer over a constant beginning": (
        "nn.functional.avg_pool1d(torch.cat([torch.linspace(0, 1, 65536).view(1, -1), x.view(1, -1)], 1), 2)",
        "if they were another call's at other places",
    ),
    "a product that adds in place": (
        "torch.ones(64, 64).addmm_((big.T < 0.3 + t[:, :1]).float(), (big < 0.3 + t[0]).float()) * (40000 * w).sin()",
        "(addmm) from three quarters of its terms",
    ),
    "a function beside integers": (
        "(torch.lgamma(2.5 + t) * (40000.0 * w).cos(), x[:4].argmax(1))",
        "step 2 (lgamma)",
    ),
    "a function that torch has by another name": ("torch.i0(t) * (30000.0 * w).cos()", "step 1 (i0)"),
    "sums over a grid beside a larger input": (
        "torch.lgamma(1.5 + t[:, :1] * torch.linspace(0, 1, 4096)).mul(torch.hann_window(4096, False)).sum(1)"
        " + big.view(64, -1).mean(1)",
        "(lgamma) with every second index of dimension 1 between its neighbours",
    ),
    "a function that hardly curves, scaled": (
        "(((x.bfloat16() @ w.bfloat16()) / 600).tanh() * torch.linspace(1, 2, 64).bfloat16()) @ w.bfloat16()",
        "(tanh) on a straight line",
    ),
    "numbers of Python": ("torch.tensor([[float(v) for v in row] for row in x]) + t", "(Tensor.__float__)"),
    "a list of tensors": ("torch.cat(torch._foreach_tanh([x / 999, w / 999])) @ w + 0 * x[:1]", "(_foreach_tanh)"),
    "an input": ("torch.cos(4000 * t) + 1e-4 * x.sort(-1).values", "if it was another call's"),
    "integers": ("t + 0 * (x * 1e6).long().sort(-1).values", "if it was another call's"),
    "a list": ("t + 0 * torch.cat([x, w]).sum()", "if it was another call's"),
    "a product of nothing": ("t + (x > 1e6).to(x.dtype) @ w", "if it was another call's"),
    "a check that always passes": (
        "(lambda h: torch.where(torch.isinf(h).any(), 0 * x, h))(x * t)",
        "(isinf), if it was another call's",
    ),
    "a function that hardly curves": (
        "torch.erfinv((x.bfloat16() @ w.bfloat16()) / 600) @ w.bfloat16()",
        "(erfinv) on a straight line",
    ),
    "a limit never reached between products": ("(x @ w).clamp(-999, 999) @ w", "(clamp) as its operand 0"),
    "a choice that never chooses otherwise between products": (
        "torch.maximum(x @ w, torch.full((64, 64), -999.0)) @ w",
        "(maximum) as its operand 0",
    ),
    "a limit never reached between transforms": (
        "torch.fft.irfft(torch.view_as_complex(torch.view_as_real(torch.fft.rfft(x)).clamp(-999, 999)), n=64) + t",
        "(clamp) as its operand 0",
    ),
    "many functions that hardly curve": (
        "functools.reduce(lambda y, f: f(y), 3 * [torch.tanh, torch.atan, torch.asinh, torch.sin, torch.erf], x / 999)",
        "on a straight line",
    ),
    "a softmax that hardly curves": (
        "(x.bfloat16() / 20).softmax(-1) @ w.bfloat16()",
        "(_softmax) on a straight line",
    ),
    "attention that hardly curves": (
        "nn.functional.scaled_dot_product_attention("
        "*(one.bfloat16().view(1, 1, 64, 64) for one in (x, w, t)), is_causal=True, scale=0.01)",
        "attention_for_cpu) on a straight line",
    ),
    "scores of attention to which its roundings hardly matter": (
        "nn.functional.scaled_dot_product_attention(*(one.view(1, 1, 64, 64) for one in (x, w / 8, t)))",
        "(_scaled_dot_product_flash_attention_for_cpu) in tf32",
    ),
    "sums over a grid": (
        "(-x[:, :1].abs() * torch.arange(512) / 512).exp().mean(-1)",
        "(exp) with every second index of dimension 1 between its neighbours",
    ),
    "sums at the places of a grid": (
        "(-((torch.arange(256) / 32 - 4)[:, None, None] - x).square()).exp().sum((1, 2))",
        "with every second index of dimension 0 between its neighbours",
    ),
    "a limit never reached beside values": (
        "x * (9e9 / torch.cat([x, w]).exp()[64:].sum()).clamp(max=1.0) + torch.cat([x, w]).exp()[:64]",
        "if it was another call's",
    ),
}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeSettings(device="cpu")) as judge:
        yield judge


def task_of(expression: str) -> Task:
    rows = 65536 if "big" in expression else 64
    source = (
        "import functools\nimport torch\nimport torch.nn as nn\n"
        "class Model(nn.Module):\n    def forward(self, x, w, t, big):\n"
        f"        return {expression}\n"
        "def get_inputs():\n"
        f"    return [torch.randn(64, 64), torch.randn(64, 64), torch.rand(64, 64), torch.randn({rows}, 64)]\n"
        "def get_init_inputs():\n    return []\n"
    )
    return Task(id="file/own", source=source, name="own", level=1, origin="file")


def unseen(judge: Judge, expression: str) -> str:
    pool = judge._pools.take(Case(task_of(expression), "", "training"))
    pool.sets(0, 1)
    return pool.unseen()


def test_steps_of_a_loop_that_hardly_changes_anything_more_are_named(judge: Judge) -> None:
    hops = "functools.reduce(lambda y, _: torch.softmax(w, 1) @ y, range(12), x) + t"
    assert ", if it was step" in unseen(judge, hops)


@pytest.mark.slow
def test_steps_of_a_loop_over_two_sequences_are_named(judge: Judge) -> None:
    mixed = "0.1 * one + 0.9 * one.mean(0, keepdim=True)"
    hops = f"sum(functools.reduce(lambda y, _: [{mixed} for one in y], range(12), [x, 9 * t])) + t"
    assert ", if it was step" in unseen(judge, hops)


@pytest.mark.parametrize("name", mostly_slow(SHOWN, "a product alone", "a softmax by hand", "places only"))
def test_products_whose_precision_outputs_show_are_paid(name: str, judge: Judge) -> None:
    assert unseen(judge, SHOWN[name]) == ""


@pytest.mark.slow
def test_a_maximum_whose_roundings_a_mean_hides_is_not_only_compared(judge: Judge) -> None:
    top = "big.max(1, keepdim=True).values"
    found = unseen(judge, f"((big - {top}).exp().sum(1, keepdim=True).log() - (big - {top})).mean()")
    assert "only compared" not in found


def test_single_elements_whose_omission_saves_little_are_no_doubt(judge: Judge) -> None:
    """A focal loss hardly shows the weights of what is classified well: one of 24 steps, in a few elements."""
    pool = judge._pools.take(Case(load_task(EXAMPLES / "focal_loss.py", device="cpu"), "", "training"))
    pool.sets(0, 1)
    assert re.fullmatch(r"(step \d+ \(exp\) in bfloat16 \(line 23\))?", pool.unseen()), "some draws hide a rounding"


@pytest.mark.parametrize("name", mostly_slow(UNSEEN, "few largest places"))
def test_products_whose_precision_no_output_shows_are_named(name: str, judge: Judge) -> None:
    # Where four rows decide, a draw may also hide that some columns are left out, which is asked first.
    assert re.search(r"\(mm\) (in tf32|left out)", unseen(judge, UNSEEN[name]))


@pytest.mark.parametrize("name", mostly_slow(LEFT_OUT, "a branch within a rounding", "terms that fade"))
def test_work_that_no_output_shows_is_named(name: str, judge: Judge) -> None:
    expression, named = LEFT_OUT[name]
    found = unseen(judge, expression)
    assert any(one in found for one in named.split(" | "))
    assert "step" not in found or found.endswith("(line 6)")


@pytest.mark.parametrize(
    ("forward", "changed"),
    [
        ("self.seen.mul_(0.9).add_(x.mean(0)); return x * 2", ("seen",)),
        ("self.last = x + 1; return x * 2", ("last",)),
        ("self.once = getattr(self, 'once', x.new_ones(3)); return x * self.once[0]", ()),
        ("return self.norm(x)", ()),
    ],
)
def test_state_that_calls_change_is_named(forward: str, changed: tuple[str, ...], judge: Judge) -> None:
    text = (
        task_of("x")
        .source.replace("return x\n", f"{forward}\n")
        .replace(
            "    def forward",
            "    def __init__(self):\n        super().__init__()\n"
            "        self.register_buffer('seen', torch.zeros(64))\n"
            "        self.norm = nn.BatchNorm1d(64)\n    def forward",
        )
    )
    task = Task(id="file/own", source=text, name="own", level=1, origin="file")
    assert judge._pools.take(Case(task, "", "training")).io_spec.changed == changed


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("self.w = torch.randn(64, 1) @ torch.randn(1, 64)", "w"),
        ("self.ws = [torch.randn(64, 1), 2]", "ws[0]"),
        ("self.table = {'a': torch.rand(3)}", "table['a']"),
        ("self.w = torch.ones(64, 64)", ""),  # each seed's is the same: it says no more than the text
        pytest.param("self.w = nn.Parameter(torch.randn(64, 64))", "", marks=pytest.mark.slow),
        pytest.param("self.register_buffer('w', torch.randn(64, 64))", "", marks=pytest.mark.slow),
        ("self.register_buffer('w', torch.randn(64, 64), persistent=False)", "w"),
    ],
)
def test_weights_outside_the_state_are_named(made: str, named: str, judge: Judge) -> None:
    text = task_of("x @ w").source.replace(
        "    def forward", f"    def __init__(self):\n        super().__init__()\n        {made}\n    def forward"
    )
    task = Task(id="file/own", source=text, name="own", level=1, origin="file")
    pool = judge._pools.take(Case(task, "", "training"))
    assert pool.io_spec.seeded == ((named,) if named else ())
    pool.sets(0, 1)
    assert pool.doubts() == ([f"seeded tensor {named} outside the state"] if named else [])


@pytest.mark.parametrize(
    "weight",
    [
        "torch.linalg.qr(self.w)[0]",
        "(x.new_zeros(256, 256) + self.w).lgamma()",
        "torch.where(x.isfinite().all(), self.w, torch.nan).lgamma()",
    ],
)
def test_work_on_weights_alone_is_named(weight: str, judge: Judge) -> None:
    text = task_of(f"t + x @ ({weight})[:64, :64]").source.replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n"
        "        self.w = nn.Parameter(torch.rand(256, 256) + 1)\n    def forward",
    )
    task = Task(id="file/own", source=text, name="own", level=1, origin="file")
    pool = judge._pools.take(Case(task, "", "training"))
    pool.sets(0, 1)
    assert "work that is the same for all inputs, such as step" in pool.doubts()[0]


def test_a_task_is_asked_once_though_its_secrets_change(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(task_of("x @ w + 1"), "", "training")
    first = judge._pools.take(case)
    first.sets(0, 1)
    assert first.doubts() == []
    judge._pools.retire(case.key)
    second = judge._pools.take(case)
    monkeypatch.setattr(second.oracle, "ask", None)
    assert second.doubts() == []


def test_an_audit_that_calls_the_task_sound_ends_the_question(judge: Judge) -> None:
    task = task_of(UNSEEN["few largest places"])
    assert judge._case(task, "", "training").doubts is None
    entry = TaskAudit(name=task.id, sha256=reference_sha256(task), verdict="sound", sets=1)
    for protocol, doubts in (("1", None), (PROTOCOL_VERSION, ())):
        judge.learn(AuditReport(suite="own", device="cpu", protocol=protocol, max_sets=1, tasks=(entry,)))
        assert judge._case(task, "", "training").doubts == doubts
    marked = entry.model_copy(update={"verdict": "survivors", "survivors": ("zeros",)})
    judge.learn(AuditReport(suite="own", device="cpu", protocol="1", max_sets=1, tasks=(marked,)))
    assert judge._case(task, "", "training").doubts == ("an audit found incorrect programs that are accepted: zeros",)


def test_such_a_task_pays_nothing_above_1_and_the_record_says_why() -> None:
    trial = TrialResult(
        TrialSamples((4.0, 4.0), (1.0, 1.0)),
        Overhead(0.1, 0.1, 0.01),
        alone_ms=(4.0, 4.0),
        alone=Alone((0.0, 0.0), (0.0, 0.0)),
        allowed=1.0,
    )
    built, speedup = Built(Case(task_of("x @ w"), "", "training")), Speedup(low=3.9, point=4.0, high=4.1)
    paid = record.measured(built, Seen(trials=[trial]), speedup, 3.9)
    free, capped = record.limited(paid, 0.0, []), record.limited(paid, 0.0, ["product 1 (mm) in tf32"])
    assert free == paid.evaluation
    assert free.rewarded_low is not None
    assert free.rewarded_low > 3
    assert capped.rewarded_low == 1.0
    assert capped.speedup == speedup
    assert "product 1 (mm) in tf32" in capped.message
    wide = record.measured(built, Seen(trials=[trial]), Speedup(low=0.5, point=5.0, high=50.0), 0.5)
    assert "times vary too much" in wide.evaluation.message
    assert "times vary too much" not in free.message


@pytest.mark.parametrize(("accepted", "found"), [(("one", ""), ""), (("", "one"), ""), (("one", "one"), "one")])
def test_another_draws_output_must_be_accepted_on_both_sets(
    monkeypatch: pytest.MonkeyPatch, accepted: tuple[str, str], found: str
) -> None:
    """One set accepts the mean of many elements by chance."""
    asked, told = Unseen(cast(Oracle, SimpleNamespace(fresh_inputs=lambda *_: []))), iter(accepted)
    monkeypatch.setattr(asked._questions, "steps", lambda *_: dict[int, Any]())
    monkeypatch.setattr(asked, "_set", lambda _: SimpleNamespace(parts={}))
    monkeypatch.setattr(asked, "_faults", lambda _: [])
    monkeypatch.setattr(asked, "_accepting", lambda _: next(told))
    assert asked.unseen({"seeds": [1, 2], "limit_s": 99.0}, [])["work"] == found


def test_calls_that_take_long_are_tried_though_they_are_small() -> None:
    mul, svd, div = 1.0, 2.0, 0.001
    assert chosen([mul, svd, div], random.Random(0)) == [0, 1]


def test_a_function_before_a_cheap_product_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    # The product is merged with the one before it, so what is saved is not its own time.
    monkeypatch.setattr(questions, "chosen", lambda seconds, draw: [0])

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, wide: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ wide) @ narrow

    def run(model: Model, values: list[torch.Tensor]) -> torch.Tensor:
        return model(*values)

    oracle: Any = SimpleNamespace(models=SimpleNamespace(plain=Model()), run=run, device=torch.device("cpu"))
    steps = Questions(oracle).steps([torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 1)], random.Random(0))
    assert {fault.text for step in steps.values() for fault in step.faults} >= {"step 2 (tanh) on a straight line"}


def test_of_many_calls_those_that_take_long_are_drawn_more_often() -> None:
    seconds = [10.0 if k == 7 else 1.0 for k in range(200)]
    draws = [chosen(seconds, random.Random(seed)) for seed in range(100)]
    assert {len(draw) for draw in draws} == {16}
    assert sum(7 in draw for draw in draws) > 40
    assert 3 < sum(150 in draw for draw in draws) < 25


def test_many_small_calls_seem_no_dearer_than_they_are() -> None:
    def run(values: list[torch.Tensor]) -> None:
        for _ in range(100):
            values[0].add(1)  # to see it takes ten times as long as to execute it
        values[1].mm(values[1])

    calls = timed(run, [torch.rand(4), torch.rand(512, 512)], torch.device("cpu"))
    assert calls[-1] > 0.9 * sum(calls)


def test_a_call_that_is_slow_in_the_first_runs_makes_no_other_seem_cheap() -> None:
    number = count()

    def run(values: list[torch.Tensor]) -> None:
        values[next(number) < 3].exp()
        values[0].exp()

    first, second = timed(run, [torch.rand(1 << 10), torch.rand(1 << 18)], torch.device("cpu"))
    assert first < 20 * second


def test_a_gradient_without_memory_is_a_doubt_and_one_without_a_derivative_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error in (torch.OutOfMemoryError("no memory"), RuntimeError("no derivative")):

        def fails(*_: object, error: RuntimeError = error) -> Never:
            raise error

        monkeypatch.setattr(dependence, "_gradients", fails)
        oracle = cast(Oracle, SimpleNamespace(device=torch.device("cpu")))
        if isinstance(error, torch.OutOfMemoryError):
            with pytest.raises(torch.OutOfMemoryError):
                dependence.negligible_parts(oracle, [], [], {0: (8,)})
        else:
            assert dependence.negligible_parts(oracle, [], [], {0: (8,)})


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_product_that_memory_leaves_untried_is_a_doubt(error: RuntimeError) -> None:
    def full(seed: int, distribution: str) -> list[torch.Tensor]:
        raise error

    answer = Unseen(cast(Oracle, SimpleNamespace(fresh_inputs=full))).unseen(
        {"seeds": [1], "precision": True, "limit_s": 9.0}, []
    )
    assert "too little memory" in answer["work"]


def test_an_attempt_hides_a_refusal_but_no_lack_of_memory() -> None:
    with Attempt():
        raise ValueError("the matrix has no factorisation")
    for error in (torch.OutOfMemoryError("no memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        with pytest.raises(RuntimeError, match="memory"), Attempt():
            raise error


def test_a_search_that_takes_too_long_is_a_doubt(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_file, "_SEARCH_SHARE", 0.0)
    assert "too little time" in unseen(judge, "(x + 1) @ w + t")
