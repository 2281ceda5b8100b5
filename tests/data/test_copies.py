"""Copies of a reference: what a program may change and still be one."""

from __future__ import annotations

import pytest
from cudal1_data import load_suite
from cudal1_data.copies import is_copy
from cudal1_data.kernelgen.codegen.rewrites import captured_program, plain_program

REFERENCE = '''
import torch
import torch.nn as nn

ROWS = 4


class Model(nn.Module):
    """Adds."""

    def __init__(self, rows):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, x):
        return torch.relu(x + self.bias)


def get_inputs():
    return [torch.randn(ROWS, ROWS)]


def get_init_inputs():
    return [ROWS]
'''
OWN = REFERENCE.replace("class Model(", "class ModelNew(")


@pytest.mark.parametrize(
    "program",
    [
        plain_program(REFERENCE),
        plain_program(REFERENCE.replace('"""Adds."""', "")),
        OWN,
        OWN.replace("super().__init__()", "super(ModelNew, self).__init__()"),
        OWN.replace("torch.relu(x + self.bias)", "(torch.relu(x  +  self.bias))  # as before"),
        OWN[: OWN.index("def get_inputs")],
        f"{REFERENCE}\n\nclass ModelNew(Model):\n    '''The same.'''\n",
    ],
)
def test_a_reference_under_the_new_name_is_a_copy(program: str) -> None:
    assert is_copy(program, REFERENCE)


@pytest.mark.parametrize(
    "program",
    [
        OWN.replace("torch.relu(x + self.bias)", "(x + self.bias).relu()"),
        OWN.replace("ROWS = 4", "ROWS = 8"),
        plain_program(REFERENCE.replace("torch.relu", "torch.tanh")),
        f"{OWN}\n\ntorch.backends.cudnn.benchmark = True\n",
        f"{REFERENCE}\n\nclass ModelNew(Model):\n    def forward(self, x):\n        return super().forward(x)\n",
        captured_program(REFERENCE),
        REFERENCE,
        "class ModelNew(Model:",
        "x" * 5,
        "(" * 5000,
    ],
)
def test_a_program_that_changes_anything_else_is_no_copy(program: str) -> None:
    assert not is_copy(program, REFERENCE)


def test_of_the_starter_suites_variants_only_those_called_plain_are_copies() -> None:
    names = {
        variant.name
        for task in load_suite("starter")
        for variant in task.variants
        if is_copy(variant.source, task.source)
    }
    assert names <= {"plain"}
