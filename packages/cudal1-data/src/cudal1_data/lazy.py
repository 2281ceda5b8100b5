"""Names of a package that are imported when they are first used: `--help` of a command imports next to nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__` (PEP 562).

    Args:
        package: Name of the package.
        modules: Module of each of its public names.

    >>> lazily("json", {"JSONDecoder": "json.decoder"})("JSONDecoder").__module__
    'json.decoder'
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return get
