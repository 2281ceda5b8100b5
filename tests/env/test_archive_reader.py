"""An archive read for reports: nothing is changed, and a damaged record is no end."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from cudal1_env.archive import Archive
from cudal1_env.archive_reader import ArchiveReader
from cudal1_env.errors import RecordError
from cudal1_env.records import Status
from cudal1_env.records.values import PROTOCOL_VERSION
from doubles.evaluator import evaluation


def test_a_reader_shows_what_an_archive_holds_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    with Archive(path) as archive:
        archive.add_all([evaluation(identity="a", speedup=2.0), evaluation(identity="b", status=Status.TIMEOUT)])
        reader = ArchiveReader(path)
        archive.add(evaluation(identity="c", speedup=3.0))
        entries, fault = reader.entries()
        assert fault is None
        assert [(one.position, one.status, one.point) for one in entries] == [
            (1, "CORRECT", 2.0),
            (2, "TIMEOUT", None),
            (3, "CORRECT", 3.0),
        ]
        assert reader.entries(after=2) == (entries[2:], None)
        assert reader.texts(1) == (archive.evaluations()[0].task_source, archive.evaluations()[0].source)
        assert reader.texts(9) is None
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._db.execute("DELETE FROM evaluations")
        reader.close()


def test_a_reader_names_a_damaged_record_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    with Archive(path) as archive:
        archive.add(evaluation(identity="a", speedup=2.0))
    db = sqlite3.connect(path)
    db.execute(
        "INSERT INTO evaluations (id, task, source_sha256, status, created_at, record) "
        "VALUES ('x', 't', 's', 'CORRECT', '', '{\"cut')"
    )
    db.commit()
    db.close()
    reader = ArchiveReader(path)
    entries, fault = reader.entries()
    assert fault is None
    assert [one.protocol for one in entries] == [PROTOCOL_VERSION, ""]
    assert reader.texts(2) is None
    reader.close()


@pytest.mark.parametrize(
    "change",
    [
        "speedup_low = 'text'",
        "speedup_point = x'ff'",
        "speedup_low = 9e999",
        "speedup_low = -1, speedup_point = 0",
        "record = json_set(record, '$.speedup.high', 'text')",
        "record = json_set(record, '$.speedup.high', json('[1]'))",
    ],
)
def test_a_row_whose_numbers_are_none_is_damaged(tmp_path: Path, change: str) -> None:
    path = tmp_path / "archive.sqlite"
    with Archive(path) as archive:
        archive.add_all([evaluation(identity="a", speedup=2.0), evaluation(identity="b", speedup=3.0)])
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER append_only")
    db.execute(f"UPDATE evaluations SET {change} WHERE id = 'a'")
    db.commit()
    db.close()
    reader = ArchiveReader(path)
    (damaged, whole), fault = reader.entries()
    assert fault is None
    assert (damaged.protocol, damaged.low, damaged.point, damaged.high) == ("", None, None, None)
    assert (whole.protocol, whole.point) == (PROTOCOL_VERSION, 3.0)
    reader.close()


def test_a_deeply_nested_record_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "archive.sqlite"
    with Archive(path) as archive:
        archive.add(evaluation())
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER append_only")
    db.execute("UPDATE evaluations SET record = ?", ("[" * 5000 + "]" * 5000,))
    db.commit()
    db.close()
    reader = ArchiveReader(path)
    assert reader.texts(1) is None
    reader.close()


def test_a_reader_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read the archive"):
        ArchiveReader(tmp_path / "none.sqlite")
    assert list(tmp_path.iterdir()) == []
