"""Fixtures shared by tests with judges."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cudal1_env.judge import Judge
from doubles.judges import QUICK, shared_zygotes


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Empty caches, so that no test meets what an earlier run built or measured. Those of uv are downloads and stay."""
    downloads = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_CACHE_DIR", os.environ.get("UV_CACHE_DIR") or str(downloads))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
        yield


@pytest.fixture(scope="session", autouse=True)
def zygotes(caches: None) -> Iterator[None]:
    """Processes that import torch once for all judges of the session."""
    with shared_zygotes():
        yield


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """A shared judge for tests that do not change it, so that they share a task's oracle."""
    with Judge(QUICK) as one:
        yield one


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small tmpfs")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"needs the right to mount a tmpfs: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
