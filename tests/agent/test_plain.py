"""References in one style: they compute the same, and differ from others in nothing but the work."""

from __future__ import annotations

import pytest
import torch
from cudal1_agent.data.plain import plain
from cudal1_agent.data.prompts import build_prompt
from cudal1_data import Task, load_suite
from doubles.references import outputs

TERSE = """\
import torch
import torch.nn as nn

BATCH = 4
COLS = 2 * BATCH


class Model(nn.Module):
    def __init__(self, cols, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        return x * self.weight + self.eps


def get_inputs():
    return [torch.randn(BATCH, COLS)]


def get_init_inputs():
    return [COLS]
"""
WORDY = '''\
"""A module."""
import torch
import torch.nn as nn

class Model(nn.Module):
    """
    Scales its input.
    """
    def __init__(self, cols: int, eps: float = 1e-5):
        """
        Args:
            cols (int): Length.
        """
        super(Model, self).__init__()
        self.eps: float = eps  # small
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scales."""
        return x * self.weight + self.eps

# Sizes
BATCH = 4
COLS = 2 * BATCH

def get_inputs():
    return [torch.randn(BATCH, COLS)]

def get_init_inputs():
    return [COLS]  # its length
'''


def test_who_wrote_a_reference_does_not_show_in_the_compact_prompt() -> None:
    assert build_prompt(WORDY, [], style="compact") == build_prompt(TERSE, [], style="compact")
    assert WORDY in build_prompt(WORDY, [], style="full")


def suite_tasks() -> list[Task]:
    return [*load_suite("starter"), *load_suite("generated?n=24&seed=3")]


@pytest.mark.parametrize("task", suite_tasks(), ids=lambda task: task.id)
def test_a_plain_reference_is_plain_and_has_the_same_parts(task: Task) -> None:
    text = plain(task.source)
    assert plain(text) == text
    assert '"""' not in text
    assert "#" not in text


@pytest.mark.parametrize("name", ["rms_norm", "causal_attention_mask", "conv_bias_relu_scale", "argmax_rows"])
def test_a_plain_reference_computes_the_same(name: str) -> None:
    task = next(task for task in load_suite("starter") if task.id == f"starter/{name}")
    for one, other in zip(outputs(task.source)[0], outputs(plain(task.source))[0], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("not ( python", "not ( python"),
        ("def f():\n    N = 3\nN = 2", "N = 2\n\ndef f():\n    N = 3"),
        ("def f(): pass\nN = 2\nN = 3", "def f():\n    pass\nN = 2\nN = 3"),
        ("def f(): pass\nN = f()\nM = N", "def f():\n    pass\nN = f()\nM = N"),
        ("def f():\n    'only a text'", "def f():\n    pass"),
    ],
    ids=["no Python", "a local name", "assigned twice", "depends on a call", "a docstring alone"],
)
def test_only_constants_move(source: str, text: str) -> None:
    assert plain(source) == text
