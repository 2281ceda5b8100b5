"""Loading and describing a user's module, in the processes that call it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.Size)


def load_file(path: Path) -> ModuleType:
    """Import a file under a name that no other module has."""
    name = f"cudal1_optimized_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where inspect and pickle look
    spec.loader.exec_module(module)
    return module


def returned(value: Any) -> str:
    """Return the form in which a module returns its outputs."""
    return "tensor" if isinstance(value, torch.Tensor) else "list" if isinstance(value, list) else "tuple"


def configuration_of(model: torch.nn.Module) -> dict[str, dict[str, str]]:
    """Return class and plain attributes of each submodule as text, by path, without the class of the module itself.

    The drop-in has the same function (`written/guard.py.in`): two modules with the same description, state and inputs
    do the same.
    """
    found: dict[str, dict[str, str]] = {}
    for path, one in model.named_modules():
        plain = {
            name: repr(value)
            for name, value in vars(one).items()
            if not name.startswith("_") and name != "training" and _is_plain(value)
        }
        found[path] = plain | ({"class": type(one).__name__} if path else {})
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(one) for one in value)
    return isinstance(value, _PLAIN)
