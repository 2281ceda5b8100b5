"""The store of builds: entries are whole or not there, bounded, and never another program's."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cudal1_env.errors import MachineError
from cudal1_env.judge.workers import build_store
from cudal1_env.judge.workers.build_folders import copy_plain, remove
from cudal1_env.judge.workers.build_store import BuildStore, build_key

KEY = build_key("program", "reference", ["mount-namespace"])


@pytest.fixture
def store(tmp_path: Path) -> BuildStore:
    return BuildStore(1 << 20, tmp_path / "store")


def made(folder: Path, text: str = "object", size_bytes: int = 0) -> Path:
    """Make a snapshot."""
    (folder / "ext" / "empty").mkdir(parents=True)
    (folder / "ext" / "one.so").write_text(text)
    (folder / "ext" / "one.so").chmod(0o755)
    (folder / "ext" / "large").write_bytes(bytes(size_bytes))
    os.utime(folder / "ext" / "one.so", ns=(1_000_000_001, 1_000_000_001))
    return folder


def found(store: BuildStore, key: str, target: Path) -> str | None:
    """What the store has of a key: the text of its file."""
    target.mkdir()
    return None if store.find(key, target) is None else (target / "ext" / "one.so").read_text()


def test_an_entry_comes_back_with_times_permissions_and_note(store: BuildStore, tmp_path: Path) -> None:
    store.keep(KEY, made(tmp_path / "snapshot"), "it raised")
    target = tmp_path / "target"
    target.mkdir()
    assert BuildStore(1 << 20, store.folder).find(KEY, target) == "it raised"
    info = (target / "ext" / "one.so").stat()
    assert (info.st_mtime_ns, info.st_mode & 0o777) == (1_000_000_001, 0o755)
    assert (target / "ext" / "empty").is_dir()
    assert store.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "parts",
    [
        ("program ", "reference", ["mount-namespace"]),
        ("program", "other", ["mount-namespace"]),
        ("program", "reference", ["mount-namespace", "seccomp"]),
        ("programreference", "", ["mount-namespace"]),
    ],
)
def test_each_part_of_the_key_keeps_entries_apart(store: BuildStore, tmp_path: Path, parts: tuple[object, ...]) -> None:
    other = build_key(*parts)
    store.keep(KEY, made(tmp_path / "snapshot"), "")
    assert found(store, other, tmp_path / "none") is None
    store.keep(other, made(tmp_path / "another", "another"), "")
    assert found(store, KEY, tmp_path / "one") == "object"
    assert found(store, other, tmp_path / "two") == "another"


def test_an_entry_under_another_keys_name_is_removed(store: BuildStore, tmp_path: Path) -> None:
    other = build_key("other")
    store.keep(KEY, made(tmp_path / "snapshot"), "")
    (store.folder / KEY).rename(store.folder / other)
    assert found(store, other, tmp_path / "target") is None
    assert not (store.folder / other).exists()


@pytest.mark.parametrize("damage", ["content", "missing", "manifest", "link"])
def test_a_damaged_entry_is_removed_and_kept_anew(store: BuildStore, tmp_path: Path, damage: str) -> None:
    store.keep(KEY, made(tmp_path / "snapshot"), "")
    entry = store.folder / KEY
    file, manifest = entry / "files" / "ext" / "one.so", entry / "manifest.json"
    if damage == "content":
        file.write_text("objecT")
    elif damage == "missing":
        file.unlink()
    elif damage == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        manifest.write_text(manifest.read_text()[:-10])
    assert found(store, KEY, tmp_path / "target") is None
    assert not list((tmp_path / "target").iterdir())
    assert not entry.exists()
    store.keep(KEY, tmp_path / "snapshot", "")
    assert found(store, KEY, tmp_path / "again") == "object"


def test_the_entries_used_last_stay(store: BuildStore, tmp_path: Path) -> None:
    keys = [build_key(str(number)) for number in range(8)]
    for number, key in enumerate(keys):
        store.keep(key, made(tmp_path / f"snapshot-{number}", size_bytes=200_000), "")
        os.utime(store.folder / key, (number, number))
        if number == 3:
            assert found(store, keys[0], tmp_path / "used") == "object"
    there = [number for number, key in enumerate(keys) if (store.folder / key).exists()]
    assert 0 in there
    assert 7 in there
    assert 1 not in there
    assert sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file()) <= store.max_bytes


def test_what_is_too_large_or_in_a_store_of_no_size_is_not_kept(store: BuildStore, tmp_path: Path) -> None:
    store.keep(KEY, made(tmp_path / "large", size_bytes=300_000), "")
    assert not list(store.folder.iterdir())
    none = BuildStore(0, tmp_path / "none")
    none.keep(KEY, made(tmp_path / "small"), "")
    assert not none.folder.exists()


def test_a_folder_that_others_can_write_to_is_no_store(store: BuildStore, tmp_path: Path) -> None:
    store.keep(KEY, made(tmp_path / "snapshot"), "")
    store.folder.chmod(0o777)
    assert found(store, KEY, tmp_path / "target") is None
    store.keep(build_key("other"), tmp_path / "snapshot", "")
    assert [path.name for path in store.folder.iterdir()] == [KEY]


def test_a_full_disk_keeps_nothing(store: BuildStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*paths: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(build_store, "copy_plain", full)
    store.keep(KEY, made(tmp_path / "snapshot"), "")
    assert not list(store.folder.iterdir())


def test_a_full_disk_is_the_machines_fault_and_costs_no_entry(
    store: BuildStore, tmp_path: Path, small_disk: Path
) -> None:
    large = made(tmp_path / "snapshot", size_bytes=200_000)
    store.keep(KEY, large, "")
    (small_disk / "filler").write_bytes(bytes(1_000_000))
    with pytest.raises(MachineError, match=r"cannot write to .*: No space left on device; free some space"):
        found(store, KEY, small_disk / "target")
    assert found(store, KEY, tmp_path / "target") == "object"
    full = BuildStore(1 << 20, small_disk / "store")
    full.keep(KEY, large, "")
    assert not list(full.folder.iterdir())


def test_a_folder_that_cannot_be_made_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = BuildStore(1 << 20, tmp_path / "file" / "store")
    store.keep(KEY, made(tmp_path / "snapshot"), "")
    assert found(store, KEY, tmp_path / "target") is None


def test_a_snapshot_holds_regular_files_and_folders_only(store: BuildStore, tmp_path: Path) -> None:
    wild = made(tmp_path / "wild")
    (tmp_path / "secret").write_text("secret")
    (wild / "link").symlink_to(tmp_path / "secret")
    (wild / "folder-link").symlink_to(tmp_path)
    os.mkfifo(wild / "pipe")
    if os.geteuid() == 0:
        os.mknod(wild / "device", 0o600 | 0o020000, os.makedev(1, 3))
    plain = tmp_path / "plain"
    plain.mkdir()
    copy_plain(wild, plain)
    for source in (plain, wild):  # the store itself refuses them, too
        key = build_key(source.name)
        store.keep(key, source, "")
        names = sorted(path.name for path in (store.folder / key / "files").rglob("*"))
        assert names == ["empty", "ext", "large", "one.so"]


def test_a_path_that_is_too_long_for_the_kernel_is_left_out(tmp_path: Path) -> None:
    """63 characters of four bytes: paths are limited in bytes."""
    wild, plain = made(tmp_path / "wild"), tmp_path / "plain"
    fd = os.open(wild, os.O_RDONLY)
    for _ in range(17):
        os.mkdir("\U0001f600" * 63, dir_fd=fd)
        below = os.open("\U0001f600" * 63, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    plain.mkdir()
    copy_plain(wild, plain)
    assert [path.name for path in plain.rglob("*.so")] == ["one.so"]
    remove(wild)
    assert not wild.exists()


WRITER = """
import sys
from pathlib import Path
from cudal1_env.judge.workers import build_store
from tests_key import KEY
store = build_store.BuildStore(1 << 30, Path(sys.argv[1]))
if len(sys.argv) > 3:  # be killed in the middle
    copy = build_store.copy_plain
    def slow(*paths):
        done = copy(*paths)
        print("copied", flush=True)
        sys.stdin.read()
        return done
    build_store.copy_plain = slow
store.keep(KEY, Path(sys.argv[2]), "")
"""


def writer(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a judge that keeps a snapshot."""
    (tmp_path / "tests_key.py").write_text(f"KEY = {KEY!r}\n")
    command = [sys.executable, "-c", WRITER, str(tmp_path / "store"), str(tmp_path / "snapshot"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_a_judge_killed_in_the_middle_leaves_nothing(store: BuildStore, tmp_path: Path) -> None:
    made(tmp_path / "snapshot")
    with writer(tmp_path, "slowly") as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "copied\n"
        assert found(store, KEY, tmp_path / "meanwhile") is None
        one.send_signal(signal.SIGKILL)
    assert [path.name[:4] for path in store.folder.iterdir()] == ["new-"]
    store.keep(KEY, tmp_path / "snapshot", "")
    assert [path.name for path in store.folder.iterdir()] == [KEY]
    assert found(store, KEY, tmp_path / "target") == "object"


def test_judges_that_write_read_and_evict_at_once_see_whole_entries(tmp_path: Path) -> None:
    keys = [build_key(str(number)) for number in range(6)]
    snapshots = [made(tmp_path / f"snapshot-{number}", str(number), 40_000) for number in range(6)]
    wrong: list[str] = []
    until = time.monotonic() + 1.0

    def judge(own: int) -> None:
        store, turn = BuildStore(200_000, tmp_path / "store"), 0
        while time.monotonic() < until:
            turn += 1
            number = (own + turn) % len(keys)
            store.keep(keys[number], snapshots[number], "")
            text = found(store, keys[number], tmp_path / f"target-{own}-{turn}")
            if text not in (None, str(number)):
                wrong.append(f"{text} instead of {number}")

    threads = [threading.Thread(target=judge, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    names = {path.name for path in (tmp_path / "store").iterdir()}
    assert names
    assert names <= set(keys)
