"""What tests with judges share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cudal1_env.judge import Judge
from doubles.judges import QUICK, shared_zygotes


@pytest.fixture(scope="session", autouse=True)
def zygotes() -> Iterator[None]:
    """Processes that import torch once for all judges of the session."""
    with shared_zygotes():
        yield


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """A judge for tests that change nothing of it, so that a task's oracle serves them all."""
    with Judge(QUICK) as one:
        yield one
