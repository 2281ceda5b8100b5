"""The store of variants: what is kept, in which order, and what survives other writers, kill -9 and a full disk."""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cudal1_env.archive import Archive
from cudal1_env.errors import MachineError, RecordError
from cudal1_env.records import OutputError, Status
from doubles.evaluator import evaluation, program
from hypothesis import given
from hypothesis import strategies as st

TESTS = Path(__file__).resolve().parent.parent

WRITER = """
import sys
from cudal1_env.archive import Archive
from doubles.evaluator import evaluation
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Archive(path) as archive:
    for i in range(count):
        archive.add(evaluation(identity=f"{name}-{i}", speedup=1 + i / 1000))
        print(f"{name}-{i}", flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    """A process that adds `count` evaluations and prints the id of each once it is added."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_integrity(path: Path) -> None:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()


def test_what_is_added_comes_back_equal(tmp_path: Path) -> None:
    first = evaluation(speedup=1.5)
    second = evaluation(status=Status.CRASH, source="caf\u00e9 \u03c0 \U0001f600 \x00 '; DROP TABLE evaluations; --")
    with Archive(tmp_path / "new" / "folder" / "archive.sqlite") as archive:
        assert [archive.add(first), archive.add(second)] == [1, 2]
        assert archive.evaluations() == [first, second]
        assert archive.evaluations(after=1) == [second]
    with Archive(tmp_path / "new" / "folder" / "archive.sqlite") as archive:
        assert archive.evaluations() == [first, second]
        assert (len(archive), archive.position()) == (2, 2)


def test_errors_that_are_not_numbers_survive() -> None:
    errors = tuple(
        OutputError(output=i, error=error, tolerance=1e-5, reference_error=1e-7)
        for i, error in enumerate((float("nan"), float("inf")))
    )
    with Archive() as archive:
        archive.add(evaluation(status=Status.WRONG_OUTPUT, errors=errors))
        (back,) = archive.evaluations()
    assert [str(error.error) for error in back.errors] == ["nan", "inf"]


@given(source=st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_any_source_survives(source: str) -> None:
    added = evaluation(source=source)
    with Archive() as archive:
        archive.add(added)
        assert archive.program(added.task, added.source_sha256) == [added]


def test_variants_and_counts_keep_tasks_and_statuses_apart() -> None:
    right = evaluation("toy/a", speedup=2.0)
    wrong = evaluation("toy/a", status=Status.WRONG_OUTPUT)
    other = evaluation("toy/b", speedup=3.0)
    with Archive() as archive:
        archive.add_all([right, wrong, other])
        assert archive.variants("toy/a") == [right]
        assert archive.variants("toy/a", correct_only=False) == [right, wrong]
        assert archive.variants("toy/c") == []
        assert archive.counts() == {
            "toy/a": {Status.CORRECT: 1, Status.WRONG_OUTPUT: 1},
            "toy/b": {Status.CORRECT: 1},
        }


def test_best_has_the_highest_lower_end_not_the_highest_point() -> None:
    sure = evaluation(speedup=2.0, spread=0.01)
    lucky = evaluation(speedup=2.5, spread=0.5)
    impossible = evaluation(speedup=9.0).model_copy(update={"status": Status.IMPOSSIBLE})
    unpaid = evaluation(speedup=8.0).model_copy(update={"rewarded_low": 1.0})
    with Archive() as archive:
        assert archive.best("toy/add") is None
        archive.add_all([lucky, sure, impossible, unpaid])
        assert archive.best("toy/add") == sure


def test_find_gives_the_latest_of_a_program() -> None:
    source = program(1.0)
    early, late = evaluation(source=source, speedup=1.0), evaluation(source=source, speedup=1.1)
    with Archive() as archive:
        archive.add_all([early, late, evaluation("toy/other", source=source)])
        assert archive.program("toy/add", early.source_sha256)[-1] == late
        assert archive.program("toy/add", "0" * 64) == []
        assert archive.program("toy/add", early.source_sha256, after=archive.position()) == []


def test_an_evaluation_delivered_twice_counts_once() -> None:
    one, two = evaluation(), evaluation()
    with Archive() as archive:
        assert archive.add_all([one, two, one]) == [1, 2, 1]
        assert archive.add(two) == 2
        assert len(archive) == 2


def test_rows_are_never_changed(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    with Archive(path) as archive:
        archive.add(evaluation())
    connection = sqlite3.connect(path)
    try:
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            connection.execute("UPDATE evaluations SET status = 'CORRECT'")
    finally:
        connection.close()


def test_a_disclosed_seed_shows_in_its_evaluations() -> None:
    commitment = hashlib.sha256(bytes.fromhex("00ff")).hexdigest()
    mine, other = evaluation(seed_commitment=commitment), evaluation(seed_commitment="c" * 64)
    with Archive() as archive:
        archive.add_all([mine, other])
        archive.disclose(commitment, "00ff")
        archive.disclose(commitment, "00ff")
        assert [found.seed for found in archive.evaluations()] == ["00ff", None]


@pytest.mark.parametrize("seed", ["00fe", "not hexadecimal"])
def test_a_seed_that_was_not_committed_to_is_refused(seed: str) -> None:
    commitment = hashlib.sha256(bytes.fromhex("00ff")).hexdigest()
    with Archive() as archive:
        archive.add(evaluation(seed_commitment=commitment))
        with pytest.raises(RecordError, match="the seed is of the commitment"):
            archive.disclose(commitment, seed)
        assert archive.evaluations()[0].seed is None


def test_truncation_restores_a_position_exactly_and_destroys_nothing(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    kept, late, again = evaluation(speedup=1.0), evaluation(speedup=5.0), evaluation(speedup=2.0)
    with Archive(path) as archive:
        mark = archive.add(kept)
        archive.add_all([late, evaluation()])
        assert archive.truncate_to(mark) == 2
        assert archive.evaluations() == [kept]
        assert archive.best("toy/add") == kept
        assert archive.add(again) == mark + 1
        assert archive.truncate_to(archive.position()) == 0
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("SELECT position, id FROM set_aside").fetchall()[0] == (2, late.id)
    finally:
        connection.close()


@pytest.mark.parametrize("position", [-1, 2])
def test_truncation_to_where_the_archive_never_was_is_refused(position: int) -> None:
    with Archive() as archive:
        archive.add(evaluation())
        with pytest.raises(RecordError, match="has positions from 0 to 1, and"):
            archive.truncate_to(position)
        assert len(archive) == 1


def test_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("this is no database" * 100)
    with pytest.raises(RecordError, match=r"notes\.txt.*not a sound SQLite file"):
        Archive(text)
    assert text.read_text() == "this is no database" * 100

    foreign = tmp_path / "foreign.sqlite"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(RecordError, match="not an archive of cudal1; give a new path"):
        Archive(foreign)


def test_an_archive_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    Archive(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(RecordError, match=r"has version 99, and this release reads version 1"):
        Archive(path)


def test_threads_share_an_archive() -> None:
    with Archive() as archive:
        threads = [threading.Thread(target=lambda: [archive.add(evaluation()) for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(archive) == 80


def test_two_processes_write_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    # Both find no file: making the tables is part of the race.
    processes = [writer(path, name, 60) for name in "ab"]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    with Archive(path) as archive:
        ids = [found.id for found in archive.evaluations()]
        assert archive.position() == 120
    for name in "ab":
        assert [one for one in ids if one.startswith(name)] == [f"{name}-{i}" for i in range(60)]


def test_kill_9_loses_nothing_that_was_added(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    with writer(path, "a", 100_000) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline().strip() for _ in range(25)]
        process.send_signal(signal.SIGKILL)
        seen += process.stdout.read().split()  # communicate() would leave out what was read ahead
    assert process.returncode == -signal.SIGKILL
    with Archive(path) as archive:
        ids = [found.id for found in archive.evaluations()]
        # The one after the last may have been added but not yet printed; a torn last line is no id.
        assert ids[: len(seen) - 1] == seen[:-1]
        assert len(seen) - 1 <= len(ids) <= len(seen) + 1
        archive.add(evaluation(identity="after"))
    check_integrity(path)


def test_a_full_disk_says_so_and_loses_nothing(small_disk: Path) -> None:
    path = small_disk / "archive.sqlite"
    big = "x" * 20_000
    added: list[str] = []
    with Archive(path) as archive:
        archive.add(evaluation(identity="first"))

        def fill() -> None:
            for i in range(100):
                archive.add(evaluation(identity=f"big-{i}", source=big))
                added.append(f"big-{i}")

        with pytest.raises(MachineError, match=r"disk is full.*is kept.*free some space"):
            fill()
        assert 5 < len(added) < 100
        assert [found.id for found in archive.evaluations()] == ["first", *added]
    check_integrity(path)


LIMITED = """
import resource, sys
from cudal1_env.archive import Archive
from cudal1_env.errors import MachineError
from doubles.evaluator import evaluation
with Archive(sys.argv[1]) as archive:
    archive.add(evaluation(identity="first"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    try:
        for i in range(100):
            archive.add(evaluation(identity=f"big-{i}", source="x" * 20_000))
            print(f"big-{i}")
    except MachineError as error:
        print(error, file=sys.stderr)
"""


def test_a_write_that_the_system_refuses_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "cannot add to the archive" in done.stderr
    assert "what was added before is kept" in done.stderr
    added = done.stdout.split()
    assert 2 < len(added) < 100
    with Archive(path) as archive:
        assert [found.id for found in archive.evaluations()] == ["first", *added]
    check_integrity(path)
