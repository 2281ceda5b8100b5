"""The table of docs/threats.md and the programs of tests/exploits agree."""

from __future__ import annotations

import re

import threats
from cudal1_env.records import Status
from cudal1_env.testing.programs import programs, read_header

KNOWN = [*range(1, 73)]


def test_every_threat_is_in_the_table_once() -> None:
    ids = [threat.id for threat in threats.threats(threats.TABLE.read_text())]
    assert sorted(ids) == [f"H{number:02}" for number in KNOWN]


def test_no_row_is_malformed() -> None:
    text = threats.TABLE.read_text()
    assert len(re.findall(r"^\|\s*H\d", text, re.MULTILINE)) == len(threats.threats(text))


def test_the_table_names_every_attack_and_no_other() -> None:
    text = threats.TABLE.read_text()
    assert text == threats.filled(text, threats.attacks()), "run `uv run scripts/threats.py`"
    listed = {program for threat in threats.threats(text) for program in threat.programs}
    assert listed == {threats.name(path) for path in threats.attacks()}


def test_threats_with_a_cpu_program_are_marked_for_the_cpu() -> None:
    tried = {program.header["threat"] for program in programs() if program.runs_on("cpu")}
    on_cpu = {threat.id for threat in threats.threats(threats.TABLE.read_text()) if threat.on_cpu}
    assert tried <= on_cpu


def test_headers_name_their_own_threat_and_a_status() -> None:
    for path in threats.attacks():
        assert read_header(path)["threat"] == threats.threat_id(path), path.name
        named = set(re.findall(r"[A-Z]+(?:_[A-Z]+)*", read_header(path)["status"]))
        assert named, path.name
        assert named <= set(Status), path.name
        # An attack without a reward may be CORRECT, as a slow program.
        assert "CORRECT" not in named or "no reward above 1" in read_header(path)["status"], path.name


def test_every_attack_has_an_honest_look_alike_and_no_look_alike_is_alone() -> None:
    honest = {program.name: program for program in programs() if program.honest}
    assert set(honest) == {f"{threats.name(path)}.honest" for path in threats.attacks()}
    assert {name: program.header["status"] for name, program in honest.items()} == dict.fromkeys(honest, "CORRECT")
