"""What `pytest` collects: tests by name below tests/, doctests in modules of the data and env packages.

Task programs, their variants and the exploits are Python files too, but importing one means running it
outside the sandbox, so they are never collected.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent
TESTS = ROOT / "tests"
STARTER = ROOT / "packages" / "cudal1-data" / "src" / "cudal1_data" / "starter"


def is_program(path: Path) -> bool:
    """Tell whether `path` is a program to be judged, or a helper, and neither a test nor one of our modules.

    >>> is_program(TESTS / "exploits" / "h34_exit.py"), is_program(TESTS / "test_pins.py")
    (True, False)
    >>> is_program(STARTER / "softmax" / "reference.py"), is_program(STARTER / "__init__.py")
    (True, False)
    """
    if path.suffix != ".py":
        return False
    if path.is_relative_to(STARTER):
        return path.parent != STARTER
    if path.is_relative_to(TESTS):
        return not (path.name.startswith("test_") or path.name == "conftest.py")
    return False


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Keep pytest from importing programs; `None` leaves the decision to pytest."""
    return True if is_program(collection_path) else None
