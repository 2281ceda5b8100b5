"""Fixtures shared by tests with judges."""

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
    """A shared judge for tests that do not change it, so that they share a task's oracle."""
    with Judge(QUICK) as one:
        yield one
