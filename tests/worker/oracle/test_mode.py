"""A dispatch mode of ours sees operators, and costs no import of torch's compiler."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import torch
from cudal1_worker.oracle.faults import Injection
from cudal1_worker.oracle.models import Widened
with Injection() as counted:
    torch.ones(4, 4) @ torch.ones(4, 4)
with Widened() as widened:
    assert torch.ones(4, dtype=torch.float64).float().dtype == torch.float64
assert [one.name for one in counted.steps] == ["mm"], counted.steps
assert widened.asked
assert "torch._dynamo" not in sys.modules
"""


def test_operators_are_seen_without_importing_the_compiler() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], check=True, timeout=120)
