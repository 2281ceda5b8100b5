"""Results files: what is known, what a kill leaves, and how parts are joined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cudal1_env.campaigns.redteam import OUTCOMES, OutcomeLine, outcomes_file, summarise
from cudal1_env.errors import RecordError
from cudal1_env.records import PROTOCOL_VERSION
from cudal1_env.records.results import read_results


def line(program: str, repeat: int = 0, **fields: str) -> OutcomeLine:
    given = {"protocol": PROTOCOL_VERSION, "device": "cpu", "message": "", **fields}
    outcome = {"program": program, "honest": False, "expected": ("CRASH",), "statuses": ("CRASH",)}
    return OutcomeLine.model_validate(
        {**outcome, **given, "reward": 0.0, "reward_at_first": 0.0, "seconds": 1.0, "repeat": repeat}
    )


def test_each_line_is_on_the_disk_at_once_and_a_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.jsonl"
    file = outcomes_file(out, "cpu")
    file.add(line("h01_a"))
    whole = out.read_bytes()
    file.add(line("h01_b"))
    both = out.read_bytes()
    for cut in range(len(whole) + 1, len(both) - 1):
        out.write_bytes(both[:cut])
        assert read_results(out, OUTCOMES) == [line("h01_a")]
        assert out.read_bytes() == both[:cut], "expected reading to change nothing"
        assert outcomes_file(out, "cpu").lines == [line("h01_a")]
        assert out.read_bytes() == whole
    out.write_bytes(both[:-1])
    assert outcomes_file(out, "cpu").lines == [line("h01_a"), line("h01_b")]
    assert out.read_bytes() == both


def test_known_results_are_not_copied_and_joined_ones_are_once(tmp_path: Path) -> None:
    parts = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for number, path in enumerate(parts):
        outcomes_file(path, "cpu").add(line("h01_a", number))
    out = tmp_path / "out.jsonl"
    file = outcomes_file(out, "cpu", known=parts)
    assert ([one.repeat for one in file.known], file.lines, out.exists()) == ([0, 1], [], False)
    for _ in range(2):
        assert [one.repeat for one in outcomes_file(out, "cpu", join=[*parts, parts[0]]).lines] == [0, 1]
    assert [one.repeat for one in read_results(out, OUTCOMES)] == [0, 1]


def test_a_missing_file_or_one_of_other_conditions_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    other, out = tmp_path / "other.jsonl", tmp_path / "out.jsonl"
    outcomes_file(other, "cuda").add(line("h01_a", device="cuda"))
    with pytest.raises(RecordError, match="holds results of protocol .*, cuda, not of .*, cpu; give another file"):
        outcomes_file(out, "cpu", join=[other])
    with pytest.raises(RecordError, match=r"^cannot read \S*missing\.jsonl: No such file or directory$"):
        outcomes_file(out, "cpu", known=[tmp_path / "missing.jsonl"])
    with pytest.raises(RecordError, match="give another --out"):
        outcomes_file(other, "cpu")
    assert not out.exists()


@pytest.mark.parametrize(("name", "count"), [("redteam_cpu.jsonl", 4120), ("redteam_cuda_protocol2.jsonl", 48)])
def test_published_outcomes_stay_readable(name: str, count: int, result_file: Callable[[str], Path]) -> None:
    assert summarise(read_results(result_file(name), OUTCOMES)).evaluations == count


def test_lines_of_another_benchmark_are_no_outcomes(result_file: Callable[[str], Path]) -> None:
    with pytest.raises(RecordError, match="not the file of a red team"):
        read_results(result_file("redteam_folder_cpu.jsonl"), OUTCOMES)
