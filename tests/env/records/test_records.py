"""Records: old names of fields are read, and a record is found in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cudal1_env.errors import RecordError
from cudal1_env.gate import AuditReport, InputSensitivity, TaskAudit
from cudal1_env.records import Evaluation, Status, read_record
from cudal1_env.records.old_names import OLD_NAMES
from cudal1_env.reward import reward_of
from doubles.evaluator import evaluation


def renamed(value: object) -> object:
    """Give fields their old names, at every depth."""
    if isinstance(value, dict):
        return {OLD_NAMES.get(key, key): renamed(one) for key, one in value.items()}
    return [renamed(one) for one in value] if isinstance(value, list) else value


def test_a_record_with_the_old_names_is_the_record() -> None:
    one = evaluation().model_copy(
        update={"roofline_ms": 0.5, "roofline_fraction": 0.25, "trials": 3, "pairs": 24, "foreign_gpu_processes": 1}
    )
    inputs = (InputSensitivity(tested=32, influential=8, share=0.1),)
    audited = TaskAudit(name="toy/add", sha256="0", verdict="sound", sets=1, inputs=inputs)
    audit = AuditReport(suite="toy", device="cpu", max_sets=12, tasks=(audited,))
    old_record, old_audit = (json.dumps(renamed(json.loads(new.model_dump_json()))) for new in (one, audit))
    for name, before in OLD_NAMES.items():
        assert f'"{before}"' in old_record + old_audit, name
        assert f'"{name}"' not in old_record + old_audit
    assert Evaluation.model_validate_json(old_record) == one
    assert AuditReport.model_validate_json(old_audit) == audit


def test_a_doubted_record_pays_at_most_one_and_says_why() -> None:
    fast, slow = evaluation(speedup=3.0), evaluation(speedup=0.5)
    low = fast.model_copy(update={"rewarded_low": 2.5})
    for one in (fast, low):
        doubted = one.doubted(["zeros pass"])
        assert (reward_of(one) > 1.0, reward_of(doubted)) == (True, 1.0)
        assert (doubted.rewarded_low, doubted.speedup, doubted.counted_low) == (1.0, one.speedup, 1.0)
        assert "zeros pass" in doubted.message
        assert doubted.doubted(["zeros pass"]) == doubted, "a record says it once"
        assert Evaluation.model_validate_json(doubted.model_dump_json()) == doubted
    assert fast.doubted([]) == fast
    untimed = fast.model_copy(update={"precision": "correct", "speedup": None})
    impossible = fast.model_copy(update={"status": Status.IMPOSSIBLE})
    for one in (slow, untimed, impossible, evaluation(status=Status.CRASH)):
        assert one.doubted(["zeros pass"]) == one


def test_a_record_at_a_prompt_is_one_line() -> None:
    one = evaluation(speedup=3.0).model_copy(update={"rewarded_low": 2.5})
    assert repr(one) == str(one) == "Evaluation(toy/add, CORRECT, 3 x (2.94 to 3.06), rewarded_low=2.5)"
    assert repr(evaluation(status=Status.CRASH)) == "Evaluation(toy/add, CRASH)"


def test_a_record_is_a_whole_file_or_its_last_line(tmp_path: Path) -> None:
    one, path = evaluation(), tmp_path / "record.json"
    record = one.model_dump_json()
    sweep = f'{{"task": "toy/add", "evaluation": {record}}}\n'
    for text in (one.model_dump_json(indent=1), f"what a person reads\n{record}\n", sweep):
        path.write_text(text)
        assert read_record(path) == one
    path.write_text("{}")
    with pytest.raises(RecordError, match="holds no evaluation"):
        read_record(path)
    path.write_bytes(b"\xff\xfe")
    for unreadable in (path, tmp_path / "missing.json"):
        with pytest.raises(RecordError, match="cannot read the record [^']*(UTF-8|directory); name a file of"):
            read_record(unreadable)
