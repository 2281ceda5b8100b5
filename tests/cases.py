"""Parametrized cases of which only some run by default."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet


def mostly_slow(names: Iterable[str], *quick: str) -> list[ParameterSet]:
    """Return a test's cases by name, with all except the quick ones marked slow."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]
