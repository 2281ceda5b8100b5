"""KernelBench from the hub, against a local cache of the same form: no network is touched."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from cudal1_data import UnknownSuiteError, load_suite, load_task
from cudal1_data.suites import hub

pytest.importorskip("huggingface_hub", reason="needs the extra cudal1-data[hub]")


@pytest.fixture
def cache(tmp_path: Path, kernelbench_rows: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache that holds levels 1 and 2 of the pinned revision."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = f"datasets--{hub.REPOSITORY.replace('/', '--')}"
    snapshot = tmp_path / "cache" / folder / "snapshots" / hub.REVISION
    for level in (1, 2):
        path = snapshot / "default" / f"level_{level}" / "0000.parquet"
        path.parent.mkdir(parents=True)
        rows = [row for row in kernelbench_rows if row["level"] == level]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return tmp_path / "cache"


def test_levels_come_from_the_cache(cache: Path) -> None:
    suite = load_suite("kernelbench", levels=[1, 2], cache_dir=cache)
    assert suite.ids == tuple(f"kernelbench/level{level}/{number}" for level in (1, 2) for number in (1, 2))
    assert suite.name == "kernelbench"
    assert load_suite("kernelbench:level2", cache_dir=cache).ids == ("kernelbench/level2/1", "kernelbench/level2/2")


def test_one_task_loads_its_level_alone(cache: Path) -> None:
    assert load_task("kernelbench/level1/2", cache_dir=cache).id == "kernelbench/level1/2"


def test_out_of_reach_names_the_alternatives(cache: Path) -> None:
    with pytest.raises(
        UnknownSuiteError, match=r"level_3.*checkout's folder, or a \.parquet or \.jsonl file"
    ) as caught:
        load_suite("kernelbench", cache_dir=cache)
    held = re.search(r"the cache holds (\S+);", str(caught.value))
    assert held is not None
    assert len(load_suite(held[1], cache_dir=cache)) == 4  # what the message says to type works without a network


def test_an_empty_cache_offers_nothing_that_it_lacks(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownSuiteError, match="reached neither") as caught:
        load_suite("kernelbench", cache_dir=tmp_path / "other")
    assert "the cache holds" not in str(caught.value)


def test_level_that_is_not_there(cache: Path) -> None:
    with pytest.raises(UnknownSuiteError, match=r"levels 1 to 4, got \[7\]"):
        load_suite("kernelbench:level7", cache_dir=cache)


def test_revision_is_a_full_commit() -> None:
    assert len(hub.REVISION) == 40
    assert int(hub.REVISION, 16)
