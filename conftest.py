"""What `pytest` collects, and what markers need.

Collected are tests by name below tests/, and doctests in the modules of the data and env packages. Task
programs, their variants and the exploits are Python files too, but importing one means running it outside
the sandbox, so they are never collected.
"""

from __future__ import annotations

import gzip
import os
import random
import re
import secrets
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

# The same 50 examples in every run, however slow the machine is at that moment.
settings.register_profile("cudal1", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("cudal1")

ROOT = Path(__file__).resolve().parent
TESTS = ROOT / "tests"
JUDGES = (
    "tests/env/judge/test_",
    "tests/env/judge/device/",
    "tests/env/judge/measure/",
    "tests/env/judge/oracle/",
    "tests/env/testing/",
    "tests/env/baselines/",
    "tests/env/test_env_judge.py",
    "tests/env/test_llm_programs.py",
)
"""Folders and files most of whose tests judge programs.

Judges of two processes wait for each other's leases: 20 tests of `test_llm_programs.py` take 31 s, and 75 to 90 s
beside another judge. Other files have few judges: with those of all files, this process would be the longer one.
"""
STARTER = ROOT / "packages" / "cudal1-data" / "src" / "cudal1_data" / "starter"
VERIFIERS = ROOT / "packages" / "cudal1-env" / "src" / "cudal1_env" / "adapters" / "verifiers.py"
"""Needs a package that does not fit into this environment; tests/env/test_adapters.py runs it in another."""
SHARED = ROOT.parent / "shared"
GPU = Path("/dev/nvidiactl")
SEED = os.environ.get("CUDAL1_TEST_SEED", "0")
"""Judges of tests draw their secrets by it and by the test's name: a test that fails can be run again with the same
draws, and all tests with other draws. Secrets of child processes, noise and times remain random."""

SLOW_PART = os.environ.get("CUDAL1_SLOW_PART", "0/1")
"""K/N: of the slow tests only one part. CI runs the part that its commit's hash names, so that it ends in time."""


def is_program(path: Path) -> bool:
    """Tell whether `path` is a program to be judged, or a helper, and neither a test nor one of our modules.

    >>> is_program(TESTS / "exploits" / "h34_exit.py"), is_program(TESTS / "test_pins.py")
    (True, False)
    >>> is_program(STARTER / "softmax" / "reference.py"), is_program(STARTER / "__init__.py")
    (True, False)
    """
    if path.suffix != ".py":
        return False
    if path == VERIFIERS:
        return True
    if path.is_relative_to(STARTER):
        return path.parent != STARTER
    if path.is_relative_to(TESTS):
        return not (path.name.startswith("test_") or path.name == "conftest.py")
    return False


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Keep pytest from importing programs; `None` leaves the decision to pytest."""
    return True if is_program(collection_path) else None


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run everything in as many processes as there are cores, and named files in this one.

    Each of several processes computes on one core: OpenMP's threads wait for each other by spinning, so that those of
    two processes take the cores from each other (60 tests of the oracle 85 s instead of 40 beside a busy process).
    """
    cores = len(os.sched_getaffinity(0))
    if cores == 1 or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes inherit it
    return cores


class OneProcessForJudges(LoadScopeScheduling):
    """Gives each process a file at a time, and one of them all files with judges: those measure one after another."""

    def _split_scope(self, nodeid: str) -> str:
        return "judges" if nodeid.startswith(JUDGES) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Divide the tests among processes; the largest part is begun first."""
    return OneProcessForJudges(config, log)


def slow_part(name: str, parts: int) -> int:
    """Return the part of a slow test: the same for all tests of one program and its look-alike, which share a task.

    >>> slow_part("test_status[h34_exit]", 7) == slow_part("test_no_attack_is_rewarded[h34_exit.honest]", 7)
    True
    """
    case = re.fullmatch(r".*\[(.*)\]", name)
    return zlib.crc32((case[1] if case else name).removesuffix(".honest").encode()) % parts


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests of other parts; measure coverage in the default tests only, for it makes others slower."""
    part, parts = (int(one) for one in SLOW_PART.split("/"))
    slow = {item for item in items if item.get_closest_marker("slow")}
    for item in slow:
        item.add_marker("no_cover")
    others = [item for item in items if item in slow and slow_part(item.name, parts) != part]
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what the test draws; skip a test whose marker asks for what this machine lacks."""
    draws = random.Random(f"{SEED} {item.nodeid}")
    secrets.token_bytes = lambda nbytes=None: draws.randbytes(nbytes or 32)
    secrets.randbits = draws.getrandbits
    secrets.token_hex = lambda nbytes=None: os.urandom(nbytes or 32).hex()  # folders of tests beside each other
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(draws.getrandbits(62))
    if item.get_closest_marker("gpu") and not GPU.exists():
        pytest.skip(f"needs a CUDA GPU; {GPU} is not there")
    if item.get_closest_marker("shared") and not SHARED.is_dir():
        pytest.skip(f"needs the folder {SHARED}, which does not exist")


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def result_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the file of a record in docs/results by its name, decompressed where it is stored as NAME.gz."""
    folder = tmp_path_factory.mktemp("results")

    def found(name: str) -> Path:
        compressed = ROOT / "docs" / "results" / f"{name}.gz"
        if not compressed.is_file():
            return compressed.with_suffix("")
        path = folder / name
        path.write_bytes(gzip.decompress(compressed.read_bytes()))
        return path

    return found


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder `shared/data` next to the checkout, read-only; without it the test is skipped."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the folder {folder}, which does not exist")
    return folder
