"""Precompiled headers: made once for a toolchain, when they are worthwhile, and seen complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cudal1_env.judge.workers import headers as module
from cudal1_env.judge.workers.headers import Headers
from cudal1_env.judge.workers.lease import choose_core

COMPILER = """#!/bin/sh
echo "$*" >> {calls}
while [ "$1" != -o ]; do shift; done
sleep {seconds}
[ {code} = 0 ] && echo compiled > "$2"
exit {code}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cudal1" / "headers"


def compiler(folder: Path, *, seconds: float = 0.0, code: int = 0) -> dict[str, str]:
    """Variables that name a compiler which notes its calls in a file `calls`."""
    script = folder / "compiler"
    script.write_text(COMPILER.format(calls=folder / "calls", seconds=seconds, code=code))
    script.chmod(0o755)
    return {"CXX": str(script)}


def expecting(environment: dict[str, str], *, kept: bool = True, times: int = module._WORTHWHILE) -> Headers:
    headers = Headers(environment, kept=kept)
    for _ in range(times):
        headers.expect()
    return headers


def test_the_compiler_leaves_the_core_of_timed_programs_alone(cache: Path, tmp_path: Path) -> None:
    core = choose_core()
    if core is None:
        pytest.skip("needs two cores")
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\ncase $* in *c++-header*) nproc >> {tmp_path / 'ran'};; esac\nexit 1")
    script.chmod(0o755)
    headers = Headers({"CXX": str(script)}, kept=True, core=core)
    for _ in range(module._WORTHWHILE):
        headers.expect()
    headers.wait()
    headers.close()
    assert {int(line) for line in (tmp_path / "ran").read_text().split()} == {len(os.sched_getaffinity(0)) - 1}


@pytest.mark.slow
def test_they_are_made_once_for_a_toolchain(cache: Path, tmp_path: Path) -> None:
    environment = compiler(tmp_path)
    few = expecting(environment, times=module._WORTHWHILE - 1)
    few.wait()
    assert few.folder is None
    few.expect()
    few.wait()
    assert few.folder is not None
    assert sorted(path.name for path in Path(few.folder).iterdir()) == ["extension.h", "extension.h.gch"]
    again = expecting(environment)
    assert again.folder == few.folder
    again.wait()
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if "c++-header" in line]
    assert len(calls) == 1
    cache.chmod(0o777)
    assert again.folder is None, "others may have written them"
    few.close()
    again.close()
    assert few.folder is None


@pytest.mark.slow
def test_a_failure_and_a_judge_that_closes_leave_nothing(cache: Path, tmp_path: Path) -> None:
    failing = expecting(compiler(tmp_path, code=1))
    failing.wait()
    assert failing.folder is None
    failing.close()
    slow = expecting(compiler(tmp_path, seconds=60.0))
    slow.close()
    assert list(cache.iterdir()) == []


def test_without_a_store_there_are_none(cache: Path, tmp_path: Path) -> None:
    headers = expecting(compiler(tmp_path), kept=False)
    headers.wait()
    assert headers.folder is None
    assert not cache.exists()
    headers.close()
