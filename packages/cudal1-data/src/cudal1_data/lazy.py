"""Import of a package's names at their first use, which keeps `--help` fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__` (PEP 562).

    Args:
        package: Name of the package.
        modules: Module of each public name.

    >>> lazily("json", {"JSONDecoder": "json.decoder"})("JSONDecoder").__module__
    'json.decoder'
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return get
