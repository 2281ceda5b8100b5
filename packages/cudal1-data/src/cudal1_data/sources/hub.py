"""KernelBench from the Hugging Face hub, at a pinned revision."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cudal1_data.errors import UnknownSuiteError, UnknownTaskError
from cudal1_data.progress import LOG
from cudal1_data.sources.kernelbench import notes
from cudal1_data.sources.table import rows_of, suite_of_rows
from cudal1_data.suggest import nearest
from cudal1_data.suite import Suite

REPOSITORY = "ScalingIntelligence/KernelBench"
REVISION = "53a119c0336b84037e5f1376c5507de8e06d22a4"
"""Commit of the dataset's parquet branch (December 2024: the snapshot with small shapes that CUDA-L1 used)."""
DEFAULT_LEVELS = (1, 2, 3)
"""Level 4, which downloads whole pretrained networks, is loaded on request only."""
_ALTERNATIVE = "instead, name a KernelBench checkout's folder, or a .parquet or .jsonl file with its columns"


def load_hub(levels: Iterable[int] | None = None, *, cache_dir: Path | None = None) -> Suite:
    """Load KernelBench's levels from the hub's cache; download only missing ones.

    Args:
        levels: Levels from 1 to 4; None for `DEFAULT_LEVELS`.
        cache_dir: The hub's cache folder; None for its default.

    Raises:
        UnknownSuiteError: huggingface_hub is not installed, or the files are neither cached nor reachable;
            the message names the alternatives.
    """
    chosen = tuple(sorted(set(DEFAULT_LEVELS if levels is None else levels)))
    unknown = [level for level in chosen if level not in (1, 2, 3, 4)]
    if unknown:
        raise UnknownSuiteError(f"unknown KernelBench levels {unknown}; there are levels 1 to 4")
    hub = _library()
    found = {level: _cached(hub, level, cache_dir) for level in chosen}
    missing = [level for level, path in found.items() if path is None]
    if missing:
        with _quiet():
            found |= {level: _asked(hub, level, cache_dir) for level in missing}
    paths = [path for path in found.values() if path is not None]
    return suite_of_rows("kernelbench", [(path, rows_of(path)) for path in paths])


def check_names(names: Iterable[str]) -> None:
    """Reject names of no KernelBench task, by the notes, which takes no network.

    Args:
        names: Ids or ends of ids, optionally with a size. Names in level 4 are not checked.

    Raises:
        UnknownTaskError: There is no such task; the message offers the nearest ids.

    >>> check_names(["level1/12", "kernelbench/level2/3@M=64", "level4/1"])
    """
    known = [f"kernelbench/{place}" for place in notes()]
    for name in names:
        key = name.partition("@")[0]
        if "level4/" in key or any(task == key or task.endswith(f"/{key}") for task in known):
            continue
        near = nearest(key, known)
        raise UnknownTaskError(
            f"KernelBench has no task {key!r} (kernelbench:level1/12 is one); "
            + (f"did you mean {', '.join(near)}?" if near else f"its tasks are {known[0]} to {known[-1]}")
        )


def _library() -> Any:
    try:
        # An optional dependency: no static import.
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UnknownSuiteError(
            "the suite kernelbench needs the package huggingface_hub, which is not installed; "
            f"install cudal1-data[hub]; {_ALTERNATIVE}"
        ) from error


def _cached(hub: Any, level: int, cache_dir: Path | None) -> Path | None:
    try:
        return _file(hub, level, cache_dir, local_files_only=True)
    except hub.errors.LocalEntryNotFoundError:
        return None


def _asked(hub: Any, level: int, cache_dir: Path | None) -> Path:
    name = _name(level)
    if hub.constants.HF_HUB_OFFLINE:
        raise _out_of_reach(hub, level, cache_dir, "HF_HUB_OFFLINE is set, so the hub was not asked")
    httpx: Any = importlib.import_module("httpx")  # the HTTP client of huggingface_hub
    LOG.info("asking the hub for %s of %s", name, REPOSITORY)
    try:
        # Check that the hub is reachable: a download would retry six times, which takes 24 s.
        hub.get_hf_file_metadata(hub.hf_hub_url(REPOSITORY, name, repo_type="dataset", revision=REVISION))
    except hub.errors.HfHubHTTPError:
        pass  # the hub answered; the download below retries
    except httpx.TransportError as error:
        raise _out_of_reach(hub, level, cache_dir, f"{type(error).__name__}: {error}") from error
    except (OSError, ValueError) as error:
        raise _out_of_reach(hub, level, cache_dir, type(error).__name__) from error
    try:
        return _file(hub, level, cache_dir)
    except (hub.errors.HfHubHTTPError, OSError, ValueError) as error:
        raise _out_of_reach(hub, level, cache_dir, type(error).__name__) from error


def _file(hub: Any, level: int, cache_dir: Path | None, *, local_files_only: bool = False) -> Path:
    return Path(
        hub.hf_hub_download(
            REPOSITORY,
            _name(level),
            repo_type="dataset",
            revision=REVISION,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
        )
    )


def _name(level: int) -> str:
    return f"default/level_{level}/0000.parquet"


def _out_of_reach(hub: Any, level: int, cache_dir: Path | None, reason: str) -> UnknownSuiteError:
    where = Path(cache_dir or hub.constants.HF_HUB_CACHE)
    offline = "" if hub.constants.HF_HUB_OFFLINE else "; HF_HUB_OFFLINE=1 asks the cache alone"
    return UnknownSuiteError(
        f"{_name(level)} of {REPOSITORY} at revision {REVISION[:12]} is neither in the cache {where} nor within reach "
        f"on the hub ({reason}); {cached_alternative(where)}{_ALTERNATIVE}{offline}"
    )


@contextmanager
def _quiet() -> Generator[None]:
    """Silence the library's message for each attempt: our error reports the failure once."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def cached_alternative(cache: Path) -> str:
    """Return the KernelBench levels in a cache, as a specification to type; empty if there are none.

    Args:
        cache: The hub's cache folder.
    """
    snapshot = cache / f"datasets--{REPOSITORY.replace('/', '--')}" / "snapshots" / REVISION / "default"
    levels = sorted(path.parent.name.removeprefix("level_") for path in snapshot.glob("level_*/0000.parquet"))
    if not levels:
        return ""
    return f"the cache holds kernelbench:{','.join(f'level{level}' for level in levels)}; "
