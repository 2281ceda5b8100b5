"""The task gate runs the reference with one fault, and finds tasks whose checker accepts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cudal1_data import Task
from cudal1_env.campaigns.audit import audit_task, programs, run
from cudal1_env.campaigns.audit.judge import AuditJudge, KnownSet
from cudal1_env.campaigns.audit.mutants import Subject
from cudal1_env.campaigns.audit.programs import FADED, MAX_STEPS, Programs, errors_of, programs_of
from cudal1_env.judge import JudgeSettings
from cudal1_env.judge.device.tensors import Expected
from cudal1_env.judge.oracle.numerics import Answer
from cudal1_env.judge.oracle.replies import Step
from cudal1_worker.oracle.faults import Injection
from cudal1_worker.oracle.steps import BLOCKS, LOWER, SEQUENTIAL, Call, rounded
from torch.nn import functional

REFERENCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, y):
        return {forward}


def get_inputs():
    return [torch.randn(48, 32), torch.randn(48, 32)]


def get_init_inputs():
    return []
"""

ROTARY = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(64, 64)

    def forward(self, x):
        q = self.query(x)
        angles = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)[:, None] + 8000.0
        angles = angles * torch.linspace(0.7, 0.9, 32, dtype=x.dtype, device=x.device)
        one, other = q.chunk(2, -1)
        return torch.cat([one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()], -1)


def get_inputs():
    return [torch.randn(2, 128, 64)]


def get_init_inputs():
    return []
"""
"""Every element errs by some 5e-4 because of its angle, so no tolerance that allows the reference sees the product."""


def task(source: str) -> Task:
    return Task(id="file/small", source=source, name="small", level=1, origin="file")


def reference(forward: str, init: str = "pass") -> Task:
    return task(REFERENCE.format(forward=forward, init=init))


@pytest.fixture(scope="module")
def judge() -> Iterator[AuditJudge]:
    with AuditJudge(JudgeSettings(device="cpu")) as one:
        yield one


def run_with(compute: Callable[[], Any], fault: str, step: int | None = 0) -> Any:
    with torch.no_grad(), Injection(step, lambda call: call.with_fault(fault)):
        return compute()


def steps_of(compute: Callable[[], Any]) -> list[tuple[str, str]]:
    with torch.no_grad(), Injection() as counted:
        compute()
    return [(one.name, one.kind) for one in counted.steps]


# --- steps ---


def test_rounding_to_tf32_keeps_ten_bits() -> None:
    x = torch.randn(1000) * 10.0 ** torch.linspace(-30, 30, 1000)
    mantissa, exponent = torch.frexp(x.double())
    digits = (mantissa.abs() * 2.0**11 + 0.5).floor()  # ties away from zero
    nearest = torch.ldexp((digits / 2.0**11).copysign(mantissa), exponent)
    assert torch.equal(rounded(x, "tf32").double(), nearest)
    assert torch.equal(rounded(rounded(x, "tf32"), "tf32"), rounded(x, "tf32"))
    assert rounded(torch.tensor([torch.inf, -torch.inf]), "tf32").tolist() == [torch.inf, -torch.inf]
    assert rounded(torch.tensor([3e-6, 1e-6]).bfloat16(), "float8").tolist() == pytest.approx([3e-6, 1e-6], rel=0.07)


def test_steps_are_products_reductions_and_chains_of_elementwise_calls() -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    found = steps_of(lambda: ((x @ w).exp() + 1).log().relu().sum(1).sqrt())
    assert found == [("mm", "product"), ("exp", "elementwise"), ("sum", "reduction"), ("sqrt", "elementwise")]
    assert steps_of(lambda: torch.arange(9).sum() + x.max()) == [("max", "reduction")]
    assert steps_of(lambda: torch.max(x, x)) == []
    names = [name for name, _ in steps_of(lambda: functional.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)))]
    assert names == ["convolution"]


@pytest.mark.parametrize("fault", LOWER[torch.float32])
def test_a_product_in_lower_precision_rounds_its_factors_and_nothing_else(fault: str) -> None:
    x, w, bias = torch.randn(8, 64), torch.randn(5, 64), torch.randn(5) * 100
    got = run_with(lambda: functional.linear(x, w, bias), fault)
    # Sums beside a bias of 100 err by up to 2e-4 in another order; factors in TF32 move them by more than 1e-3.
    assert torch.allclose(got, functional.linear(rounded(x, fault), rounded(w, fault), bias), rtol=0.0, atol=5e-4)
    assert not torch.allclose(got, functional.linear(x, w, bias), rtol=0.0, atol=1e-3)
    assert torch.equal(run_with(lambda: functional.linear(x, w, bias), fault, step=1), functional.linear(x, w, bias))


PRODUCTS: dict[str, Callable[[], torch.Tensor]] = {
    "mm": lambda: _X @ _W,
    "bmm": lambda: torch.bmm(_X[None], _W[None]),
    "mv": lambda: _X @ _W[:, 0],
    "dot": lambda: _X[0] @ _W[:, 0],
    "addmm": lambda: torch.addmm(_X[:, :5], _X, _W[:, :5], beta=2.0, alpha=3.0),
    "linear": lambda: functional.linear(_X, _W.T, _X[0]),
    "conv2d": lambda: functional.conv2d(_X.reshape(1, 48, 8, 8), _W[:7, :48].reshape(7, 48, 1, 1), _X[0, :7]),
    "conv_transpose": lambda: functional.conv_transpose1d(_X.reshape(1, 48, 64), _W[:48, :6].reshape(48, 2, 3)),
}
torch.manual_seed(0)
_X, _W = torch.randn(48, 64, dtype=torch.float64), torch.randn(64, 64, dtype=torch.float64)[:, : 48 + 16]


@pytest.mark.parametrize("name", list(PRODUCTS))
def test_sums_term_by_term_give_the_same_up_to_rounding(name: str) -> None:
    right = PRODUCTS[name]()
    assert torch.allclose(run_with(PRODUCTS[name], SEQUENTIAL), right, rtol=0, atol=1e-12 * float(right.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_partial_sums_of_half_precision_are_less_accurate_than_one_sum(dtype: torch.dtype) -> None:
    a, b = torch.rand(16, 1024).to(dtype), torch.rand(1024, 16).to(dtype)
    right = a.double() @ b.double()

    def error(got: torch.Tensor) -> float:
        return float((got.double() - right).abs().max())

    for fault in BLOCKS:
        assert error(run_with(lambda: a @ b, fault)) > 1.5 * error(a @ b)
    with torch.no_grad(), Injection() as counted:
        torch.mm(a, b)
    assert counted.steps[0].faults == ["float8", *BLOCKS]


def test_faults_change_in_place_operators_in_place() -> None:
    x = torch.randn(64)

    def in_place() -> torch.Tensor:
        y = x.clone()
        y.exp_()
        return y

    assert torch.equal(run_with(in_place, "bfloat16"), x.bfloat16().float().exp().bfloat16().float())


def test_the_float64_reference_does_one_step_in_the_references_precision() -> None:
    got = []

    def change(call: Call) -> Any:
        got.append(call.in_precision("own", torch.float32))
        return got[-1]

    with torch.no_grad(), Injection(0, change):
        torch.mm(_X, _W)
    assert got[0].dtype == torch.float64
    assert torch.equal(got[0], (_X.float() @ _W.float()).double())


# --- programs ---


def test_few_of_many_steps_are_tried_and_each_name_says_where() -> None:
    steps = [Step(name=f"op{k // 10}", shapes=[(k,)], faults=["tf32"] if k else []) for k in range(50)]
    found = programs_of(steps)
    at_steps = [one for one in found if one.step is not None]
    assert len(at_steps) == MAX_STEPS
    assert at_steps[0].name == "tf32 at step 2 (op0)"
    assert at_steps[-1].name == "tf32 at step 50 (op4)"
    assert [one.name for one in found if one.step is None] == list(FADED)


def test_fading_elements_are_found_in_narrow_outputs() -> None:
    ordinary = np.random.default_rng(0).normal(size=(4, 256, 3))
    fading = ordinary * (0.9 ** np.arange(256))[:, None]
    for name in ("faded elements dropped", "faded slices dropped"):
        assert not FADED[name](ordinary).any()
        dropped = FADED[name](fading)
        assert dropped[:, 160:].all()
        assert not dropped[:, :60].any()
    assert FADED["faded slices dropped"](fading.transpose(0, 2, 1))[..., 160:].all()
    assert FADED["smallest rows dropped"](fading).mean() == 0.25
    assert not FADED["smallest rows dropped"](fading[0, 0]).any()


class FakeJudge:
    """Its reference knows all that it answers, or nothing of it."""

    def __init__(self, outputs: np.ndarray) -> None:
        self.outputs = outputs

    def steps(self, task: Task, one: KnownSet) -> list[dict[str, Any]]:
        return []

    def faulty(self, *_: object, **__: object) -> list[np.ndarray]:
        return [self.outputs]


@pytest.mark.parametrize("noise", [False, True])
def test_dropping_what_the_reference_knows_is_not_harmless(monkeypatch: pytest.MonkeyPatch, noise: bool) -> None:
    """However small it is: 1e-20 of the output's scale is zero by any tolerance that goes by that scale."""
    monkeypatch.setattr(programs, "passes", lambda *_: True)
    random = np.random.default_rng(0)
    right = random.normal(size=(256, 4)) * np.where(np.arange(256) < 128, 1.0, 1e-20)[:, None]
    own = right + np.where(np.arange(256) < 128, 0.0, 1e-20)[:, None] * random.normal(size=(256, 4)) * noise
    expected = Expected((256, 4), "float64", aliases=False)
    answer = Answer(np.arange(4), right.reshape(-1)[:4], right.reshape(-1), 1.0, 1e-6)
    one = KnownSet(0, "own", (), (expected,), (answer,))
    subject = Subject(right.reshape(-1), expected, 1.0, (), right.reshape(-1), random)
    hunted = Programs(FakeJudge(own.reshape(-1)), reference("x"))  # type: ignore[arg-type]
    hunted.meet(one, [subject])
    assert hunted.alive is not None
    assert {program.name: harmless for program, harmless in hunted.alive.items()} == dict.fromkeys(FADED, noise)


def test_errors_are_seen_where_the_answer_has_faded() -> None:
    right = np.where(np.arange(1600) < 800, 1.0, 1e-12)
    subject = Subject(right, Expected((1600,), "float64", aliases=False), 1.0, (), right, np.random.default_rng(0))
    assert errors_of(np.where(right < 0.5, 0.0, right), subject).tolist() == pytest.approx([1e-12, 0.5**0.5])
    assert errors_of(right, subject).tolist() == [0.0, 0.0]


# --- tasks ---


@pytest.mark.slow
def test_a_product_in_lower_precision_cannot_hide_behind_another_steps_error(judge: AuditJudge) -> None:
    """One scale for the whole output let it: the angles' error is that of few elements. A part of its terms can."""
    one = audit_task(judge, task(ROTARY))
    assert one.error_factor is None
    assert not any("tf32 at step" in name or "float16 at step" in name for name in one.survivors)
    assert all("of step 1 (addmm) in" in name for name in one.survivors)


@pytest.mark.slow
def test_an_ordinary_product_lets_no_faulty_program_through(judge: AuditJudge) -> None:
    one = audit_task(judge, reference("torch.tanh(self.lin(x)) + y", "self.lin = nn.Linear(32, 32)"))
    assert (one.verdict, one.survivors, one.reason) == ("sound", (), "")


@pytest.mark.slow
def test_factors_that_tf32_holds_exactly_are_no_survivors(judge: AuditJudge) -> None:
    exact = "torch.round(x * 8).clamp(-16, 16) @ torch.round(y * 8).clamp(-16, 16).T"
    one = audit_task(judge, reference(exact))
    assert one.verdict == "sound"
    assert "tf32 at step 1 (mm)" in one.equivalents


@pytest.mark.slow
def test_an_input_that_hardly_counts_is_a_survivor_and_one_that_does_not_is_none(judge: AuditJudge) -> None:
    hidden = audit_task(judge, reference("torch.sin(x * 3e3) + 5e-6 * y.sum(1, keepdim=True)"))
    assert any("if it was another call's" in one for one in hidden.survivors)
    without = audit_task(judge, reference("torch.sin(x) + 0 * y"))
    assert (without.verdict, without.survivors) == ("sound", ())


TAKEN = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, places):
        return torch.sin(x * 3e3) + {share} * x[places]


def get_inputs():
    return [torch.randn(48, 32), torch.randint(48, (48,))]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_integer_inputs_are_ignored_too(judge: AuditJudge) -> None:
    hidden = audit_task(judge, task(TAKEN.format(share=2e-6)))
    assert any("if it was another call's" in one for one in hidden.survivors)
    assert audit_task(judge, task(TAKEN.format(share=1.0))).verdict == "sound"


@pytest.mark.slow
def test_a_task_with_an_input_that_never_changes_is_marked(judge: AuditJudge) -> None:
    """Beside another one, that does: a program may hold its values instead of reading it."""
    source = REFERENCE.format(forward="x + y", init="pass")
    one = audit_task(judge, task(source.replace("torch.randn(48, 32)]", "torch.full((48, 32), 0.5)]")))
    assert (one.verdict, one.survivors) == ("survivors", ("constant input 1",))


@pytest.mark.slow
def test_a_task_is_tightened_where_a_smaller_factor_will_do(judge: AuditJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide default lets TF32 through; a smaller factor catches it, and other orders of summation pass."""
    wide = JudgeSettings(device="cpu", error_factor=4096.0)
    monkeypatch.setattr(run, "FACTORS", (32.0,))
    sums = reference("(x @ y.T).sum(1)")
    with AuditJudge(wide) as loose:
        one = audit_task(loose, sums)
        assert (one.verdict, one.error_factor, one.survivors) == ("sound", 32.0, ())
        assert one.reason.startswith("passed at the error factor 4096: ")
        assert "tf32 at step 1 (mm)" in one.reason
        monkeypatch.setattr(run, "passes_in_sequence", lambda *_: False)
        marked = audit_task(loose, sums)
        assert (marked.verdict, marked.error_factor) == ("survivors", None)


def test_the_judge_compares_with_a_tightened_tasks_own_factor(judge: AuditJudge) -> None:
    hidden = task(ROTARY)

    def allowed() -> float:
        (one,) = judge.known_sets(hidden, 1)
        return float(np.max(one.answers[0].limits))

    judge.use_factor(hidden, None)
    before = allowed()
    judge.use_factor(hidden, 4.0)
    assert allowed() == pytest.approx(before / 8)
    judge.use_factor(hidden, None)
