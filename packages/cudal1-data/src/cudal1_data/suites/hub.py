"""KernelBench from the Hugging Face hub, at a pinned revision."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cudal1_data.errors import UnknownSuiteError
from cudal1_data.suite import Suite
from cudal1_data.suites.table import rows_of, suite_of_rows

REPOSITORY = "ScalingIntelligence/KernelBench"
REVISION = "53a119c0336b84037e5f1376c5507de8e06d22a4"
"""Commit of the dataset's parquet branch (December 2024: the snapshot with small shapes that CUDA-L1 used)."""
DEFAULT_LEVELS = (1, 2, 3)
"""Level 4 (whole pretrained networks, which it downloads) is loaded on request only."""


def load_hub(levels: Iterable[int] | None = None, *, cache_dir: Path | None = None) -> Suite:
    """Load KernelBench's levels, from the hub's cache where it holds them.

    Args:
        levels: Which levels, 1 to 4; `DEFAULT_LEVELS` for None.
        cache_dir: The hub's cache folder; its own default for None.

    Raises:
        UnknownSuiteError: huggingface_hub is not installed, or the files are neither cached nor reachable;
            the message names the alternatives.
    """
    chosen = tuple(sorted(set(DEFAULT_LEVELS if levels is None else levels)))
    wrong = [level for level in chosen if level not in (1, 2, 3, 4)]
    if wrong:
        raise UnknownSuiteError(f"expected KernelBench levels 1 to 4, got {wrong}")
    paths = [_fetch(f"default/level_{level}/0000.parquet", cache_dir) for level in chosen]
    return suite_of_rows("kernelbench", [(path, rows_of(path)) for path in paths])


def _fetch(name: str, cache_dir: Path | None) -> Path:
    alternative = "instead, name a KernelBench checkout's folder, or a .parquet or .jsonl file with its columns"
    try:
        # An optional dependency, so nothing of it is imported by name.
        hub: Any = importlib.import_module("huggingface_hub")
        constants: Any = importlib.import_module("huggingface_hub.constants")
        errors: Any = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        raise UnknownSuiteError(
            "expected the package huggingface_hub for the suite kernelbench, found none; "
            f"install cudal1-data[hub]; {alternative}"
        ) from error
    try:
        return Path(hub.hf_hub_download(REPOSITORY, name, repo_type="dataset", revision=REVISION, cache_dir=cache_dir))
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        where = Path(cache_dir or constants.HF_HUB_CACHE)
        raise UnknownSuiteError(
            f"expected {name} of {REPOSITORY} at revision {REVISION[:12]} in the cache {where} or on the hub, "
            f"reached neither ({type(error).__name__}); {cached_alternative(where)}{alternative}"
        ) from error


def cached_alternative(cache: Path) -> str:
    """Return what of KernelBench a cache holds, as something to type; empty where it holds nothing.

    Args:
        cache: The hub's cache folder.
    """
    snapshot = cache / f"datasets--{REPOSITORY.replace('/', '--')}" / "snapshots" / REVISION / "default"
    levels = sorted(path.parent.name.removeprefix("level_") for path in snapshot.glob("level_*/0000.parquet"))
    if not levels:
        return ""
    return f"the cache holds kernelbench:{','.join(f'level{level}' for level in levels)}; "
