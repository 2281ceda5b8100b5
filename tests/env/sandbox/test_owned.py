"""What a judge that was killed leaves on the machine, and what the next one does about it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cudal1_env.judge.workers.build_folders import BuildFolders
from cudal1_env.sandbox import Cage, CgroupUnavailable, owned
from cudal1_env.sandbox.cgroup import own_groups

OTHER_USER = 12345

BUILDS = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from cudal1_env.judge.workers.build_folders import BuildFolders
folders = BuildFolders()
folder, _ = folders.begin(None, private=False)
deep = folder / "a" / "b"
deep.mkdir(parents=True)
(deep / "made").write_bytes(bytes(1 << 20))
deep.chmod(0)
print(folders._root, flush=True)
sys.stdin.read()
"""

CAGES = """
import sys
from cudal1_env.sandbox import Cage
cage = Cage.make()
print(*set(cage._folders.values()), flush=True)
sys.stdin.read()
"""

STARTS_AND_ENDS = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from cudal1_env.judge.workers.build_folders import BuildFolders
for _ in range(200):
    folders = BuildFolders()
    assert folders._root.is_dir() and folders._empty.is_dir(), "another judge removed it"
    folders.close()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def begun() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def begin(begun: list[subprocess.Popen[str]], program: str, folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path)),
        text=True,
    )
    begun.append(process)
    return process


def said(process: subprocess.Popen[str]) -> list[Path]:
    assert process.stdout is not None
    return [Path(text) for text in process.stdout.readline().split()]


@pytest.mark.slow
def test_build_folders_of_a_killed_judge_are_removed_and_a_living_judges_are_not(
    temporary: Path, begun: list[subprocess.Popen[str]]
) -> None:
    dead, alive = (begin(begun, BUILDS, temporary) for _ in range(2))
    (left,), (kept,) = said(dead), said(alive)
    dead.kill()
    dead.wait()
    assert left.is_dir()
    folders = BuildFolders()
    try:
        assert not left.exists()
        assert list(kept.glob("build-*"))
    finally:
        folders.close()
    assert [path.name for path in temporary.iterdir()] == [kept.name]


def test_links_files_and_folders_of_other_users_are_left_alone(temporary: Path) -> None:
    target = temporary / "target"
    (target / "inside").mkdir(parents=True)
    (temporary / "cudal1-build-link").symlink_to(target)
    (temporary / "cudal1-build-file").touch()
    others = temporary / "cudal1-build-other"
    others.mkdir()
    if os.geteuid() == 0:
        os.chown(others, OTHER_USER, OTHER_USER)
    BuildFolders().close()
    assert (target / "inside").is_dir()
    assert (temporary / "cudal1-build-file").exists()
    assert others.exists() is (os.geteuid() == 0)


def test_a_folder_that_is_removed_before_its_maker_locks_it_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, list[Path]()

    def late(fd: int, operation: int) -> None:
        """Another judge finds the first folder in the moment between its making and its locking."""
        if not removed:
            removed.extend(temporary.iterdir())
            owned.remove_abandoned(temporary, "x-", shutil.rmtree)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    folder, fd = owned.make_owned(temporary, "x-")
    os.close(fd)
    assert removed
    assert folder not in removed
    assert folder.is_dir()


@pytest.mark.slow
def test_judges_that_start_and_end_at_once_keep_their_folders(
    temporary: Path, begun: list[subprocess.Popen[str]]
) -> None:
    judges = [begin(begun, STARTS_AND_ENDS, temporary) for _ in range(4)]
    assert [judge.wait() for judge in judges] == [0] * 4
    assert not list(temporary.iterdir())


def test_control_groups_of_a_killed_judge_are_removed_and_a_living_judges_are_not(
    temporary: Path, begun: list[subprocess.Popen[str]]
) -> None:
    try:
        Cage.make().remove()
    except CgroupUnavailable as error:
        pytest.skip(f"no control groups for this user: {error}")
    dead, alive = (begin(begun, CAGES, temporary) for _ in range(2))
    left, kept = said(dead), said(alive)
    dead.kill()
    dead.wait()
    assert all(group.is_dir() for group in left)
    Cage.make().remove()
    assert not any(group.exists() for group in left)
    assert all(group.is_dir() for group in kept)
    alive.kill()
    alive.wait()
    Cage.make().remove()
    groups = {path for parent in set(own_groups().values()) for path in parent.glob("cudal1-worker-*")}
    assert not groups & set(kept)
