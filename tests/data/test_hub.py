"""KernelBench from the hub, against a local cache of the same form: no network is touched."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from cudal1_data import UnknownSuiteError, UnknownTaskError, load_suite, load_task
from cudal1_data.cli import main
from cudal1_data.sources import hub

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
    with pytest.raises(UnknownSuiteError, match="is neither in the cache") as caught:
        load_suite("kernelbench", cache_dir=tmp_path / "other")
    assert "the cache holds" not in str(caught.value)


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine without a network; holds what the hub was asked for."""
    import httpx

    asked: list[str] = []

    def refused(url: str, **_: Any) -> None:
        asked.append(url)
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 8s")
        raise httpx.ConnectError("no such host")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", refused)
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", refused)
    return asked


def test_cached_files_need_no_network(cache: Path, unreachable: list[str]) -> None:
    assert len(load_suite("kernelbench:level1,level2", cache_dir=cache)) == 4
    assert unreachable == []


def test_an_unreachable_hub_is_asked_once_and_for_what_the_cache_lacks(cache: Path, unreachable: list[str]) -> None:
    with pytest.raises(
        UnknownSuiteError,
        match=r"level_3.*is neither in the cache .* nor within reach on the hub \(ConnectError: no such host\)",
    ) as caught:
        load_suite("kernelbench", levels=[1, 3, 4], cache_dir=cache)
    assert "kernelbench:level1,level2; " in str(caught.value)
    assert "HF_HUB_OFFLINE=1" in str(caught.value)
    [url] = unreachable
    assert "level_3" in url


def test_the_error_names_offline_mode_as_the_reason(cache: Path) -> None:
    with pytest.raises(UnknownSuiteError, match=r"HF_HUB_OFFLINE is set"):
        load_suite("kernelbench:level3", cache_dir=cache)


def test_the_command_prints_two_lines(
    tmp_path: Path, unreachable: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That it asks the hub, and that it cannot; nothing of the library's own attempts."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert main(["list", "kernelbench"]) == 2
    asking, reason = capsys.readouterr().err.splitlines()
    assert asking.startswith("asking the hub for default/level_1/")
    assert reason.startswith("cudal1-data: default/level_1/")
    assert len(unreachable) == 1


def test_names_are_checked_without_a_network(unreachable: list[str]) -> None:
    hub.check_names(["level1/12", "12", "level2/3@M=64", "kernelbench/level3/50", "level4/2"])
    with pytest.raises(UnknownTaskError, match=r"no task 'foo' .*; its tasks are kernelbench/level1/1 to"):
        hub.check_names(["level1/12", "foo"])
    with pytest.raises(UnknownTaskError, match=r"did you mean .*kernelbench/level1/100\?"):
        hub.check_names(["level1/101"])
    assert unreachable == []


def test_level_that_is_not_there(cache: Path) -> None:
    with pytest.raises(UnknownSuiteError, match=r"unknown KernelBench levels \[7\]"):
        load_suite("kernelbench:level7", cache_dir=cache)


def test_revision_is_a_full_commit() -> None:
    assert len(hub.REVISION) == 40
    assert int(hub.REVISION, 16)
