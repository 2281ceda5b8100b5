"""Programs in KernelBench's form for tests."""

from __future__ import annotations

from cudal1_data import Task

PROGRAM = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x * {factor}


N = 8


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
"""


def program(factor: int = 2) -> str:
    """Return a task in KernelBench's form; the factor makes its source unique."""
    return PROGRAM.format(factor=factor)


HEADER = "import torch\nimport torch.nn as nn\n"


def reference(forward: str, inputs: str, *, init: str = "", arguments: str = "[]") -> Task:
    """Return a task made of a few lines."""
    source = (
        f"{HEADER}class Model(nn.Module):\n    def __init__(self, *sizes):\n        super().__init__()\n"
        f"        {init or 'pass'}\n"
        f"    def forward(self, *x):\n        {forward}\n"
        f"def get_inputs():\n    return {inputs}\ndef get_init_inputs():\n    return {arguments}\n"
    )
    return Task(id="file/small", source=source, name="small", level=1, origin="file")


def candidate(forward: str, *, init: str = "pass", top: str = "") -> str:
    """Return a candidate made of a few lines."""
    return (
        f"{HEADER}{top}\nclass ModelNew(nn.Module):\n    def __init__(self, *sizes):\n        super().__init__()\n"
        f"        {init}\n    def forward(self, *x):\n        {forward}\n"
    )


ADD = reference("return x[0] * 2 + x[1]", "[torch.randn(256, 512), torch.randn(256, 512)]")
LINEAR = reference(
    "return self.norm(self.lin(x[0]))",
    "[torch.randn(64, 128)]",
    init="self.lin = nn.Linear(128, 64); self.norm = nn.LayerNorm(64)",
)
