"""Fast programs for tasks of the family `llm`, in plain PyTorch, are CORRECT: the judge allows what engineers would do.

Each program is the reference with another `forward`. It is written for one structure, whatever the task's number.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from cudal1_data import Task
from cudal1_data.generator import make_task, tag_of
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.records import Status

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Fast:
    """A fast `forward`, and which tasks it is for."""

    block: str
    without: tuple[str, ...]
    """What the task's source does not contain."""
    having: tuple[str, ...]
    """What it contains."""
    forward: str
    """Lines; `{out}` stands for what the reference does to the layout of its output, `{tables}` for how it spreads
    cosines and sines over heads."""


FAST = {
    "residual norm": Fast(
        "residual norm",
        ("inner", "y,", " - ", "0.5 * ", "0.25 * ", "(1 + self"),
        ("residual = residual + x",),
        """
        residual = torch.add(residual, x)
        return F.rms_norm(residual, residual.shape[-1:], self.weight, 1e-6), residual
        """,
    ),
    "modulated norm": Fast(
        "modulated norm",
        ("gate", "parts"),
        ("out = out * torch.rsqrt(out.square()",),
        """
        out = F.layer_norm(x.float(), x.shape[-1:], eps=1e-6)
        return torch.addcmul(shift.float(), out, 1 + scale.float()).to(x.dtype)
        """,
    ),
    "interleaved rotary embedding": Fast(
        "rotary embedding",
        ("cache", "slots", "keys", "kept", "HEAD_DIM**0.5"),
        ("[..., ::2]", "cos, sin = cos["),
        """
        {tables}
        turn = torch.complex(cos, sin)
        def rotated(x):
            pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)
        return rotated(q), rotated(k)
        """,
    ),
    "gated MLP": Fast(
        "gated MLP",
        ("chunk", "strided", "::2", "bias", "clamp", "share", "x + "),
        ("F.silu(gate) * up", "F.linear(h, self.down)"),
        """
        both = F.linear(x, torch.cat((self.gate, self.up)))
        gate, up = both.chunk(2, dim=-1)
        return F.linear(F.silu(gate).mul_(up), self.down)
        """,
    ),
    "prefill attention": Fast(
        "prefill attention",
        ("WINDOW", "DOCUMENTS", "slope", "tanh", "sink", "gate"),
        (),
        """
        length, width = q.shape[2], k.shape[2]
        seen = torch.ones(length, width, dtype=torch.bool, device=q.device).tril(width - length)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return {out}
        """,
    ),
    "decode attention": Fast(
        "decode attention",
        ("WINDOW", "tanh", "sink", "PAGES", "gate"),
        (),
        """
        seen = torch.arange(k.shape[2], device=q.device) < lengths[:, None]
        out = F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=seen[:, None, None], enable_gqa=True)
        return out[:, :, 0]
        """,
    ),
    "cross-entropy": Fast(
        "cross-entropy",
        ("self.head", "tanh", "weights", "extra"),
        ("0.1 * (total",),
        """
        loss = F.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=0.1, ignore_index=-100)
        return loss
        """,
    ),
    "sampling": Fast(
        "sampling",
        ("cumsum", "temperature", "/ 0.", "/ 1."),
        ("TOP_K",),
        """
        logits = logits.float()
        ranked, places = torch.topk(logits, TOP_K, dim=-1)
        score = logits - uniform.log().neg_().log_()
        tokens = score.masked_fill_(logits < ranked[:, -1:], float("-inf")).argmax(-1)
        share = logits.gather(1, tokens[:, None]).squeeze(1) - torch.logsumexp(ranked, -1)
        return tokens, share
        """,
    ),
    "router": Fast(
        "router",
        ("sigmoid", "GROUPS", "2.5", "y,", "best = torch.topk"),
        ("scores = torch.softmax", "factor"),
        """
        best, places = torch.topk(logits, TOP_K, dim=-1)
        weights = torch.softmax(best, dim=-1) * factor.float()
        return torch.zeros_like(logits).scatter_(1, places, weights).to(factor.dtype)
        """,
    ),
    "capped logits": Fast(
        "capped logits",
        ("temperature", "self.bias"),
        ("15.0",),
        """
        return F.linear(x, self.head).float().div_(15).tanh_().mul_(15).to(x.dtype)
        """,
    ),
}
BRIEF = ("residual norm", "prefill attention", "cross-entropy")


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeSettings(device="cpu")) as one:
        yield one


@functools.cache
def numbered(number: int) -> Task:
    """A task of the family."""
    return make_task("llm", 23, number)


def fast_program(name: str, dtype: str) -> tuple[Task, str]:
    """A task and a fast program for it."""
    fast = FAST[name]
    for task in map(numbered, range(2000)):
        if not task.name.startswith(f"llm, {fast.block}:") or tag_of(task, "dtype") != dtype:
            continue
        if all(text in task.source for text in fast.having) and not any(text in task.source for text in fast.without):
            break
    else:
        raise AssertionError(f"expected a task for the program {name!r} in {dtype} among 2000, found none")
    out = "out.transpose(1, 2).flatten(2)" if ".transpose(1, 2).flatten(2)" in task.source else "out"
    tables = re.search(r"cos, sin = .*", task.source)
    body = fast.forward.strip("\n").rstrip().replace("{out}", out)
    body = body.replace("{tables}", tables[0] if tables else "")
    found = re.fullmatch(r"(.*    def forward\([^\n]*\n).*?(\n\n\ndef get_inputs.*)", task.source, re.S)
    assert found is not None
    source = f"{found[1]}{body}{found[2]}".replace("class Model(", "class ModelNew(")
    if "import torch.nn.functional" not in source:
        source = source.replace(
            "import torch.nn as nn\n", "import torch.nn as nn\nimport torch.nn.functional as F\n", 1
        )
    return task, source


@pytest.mark.parametrize("name", BRIEF)
def test_a_fast_program_is_correct(judge: Judge, name: str) -> None:
    task, source = fast_program(name, "bfloat16")
    found = judge.evaluate(task, source, precision="correct")
    assert found.status is Status.CORRECT, f"{task.id}: {found.message}"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAST)
def test_every_fast_program_is_correct_in_each_dtype(judge: Judge, name: str, dtype: str) -> None:
    task, source = fast_program(name, dtype)
    found = judge.evaluate(task, source, precision="correct")
    assert found.status is Status.CORRECT, f"{task.id}: {found.message}"
