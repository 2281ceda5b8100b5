"""The site's generated pages match the code; its glossary stays short; its notebook prints what it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import documents
import notebook
import pytest
import reference
import site_hooks
from cudal1_env.judge import JudgeSettings
from cudal1_env.records import Evaluation
from pydantic import BaseModel

MAX_TERMS = 30
NOTEBOOK = documents.ROOT / "docs" / "notebooks" / "first_reward.ipynb"


def outputs(cells: list[dict[str, object]]) -> str:
    return site_hooks.notebook_page({"cells": cells}, "")


@pytest.mark.parametrize("owner", [Evaluation, JudgeSettings, *reference.nested(Evaluation)])
def test_each_field_of_records_and_settings_is_described(owner: type[BaseModel]) -> None:
    rows = [line for line in reference.table_of(owner) if line.startswith("| `")]
    assert rows
    assert [row for row in rows if row.endswith("|  |")] == []


def test_settings_show_their_defaults() -> None:
    page = reference.settings_page()
    assert "| `call_timeout_s` | `float` | `5.0` |" in page
    assert "| `suite` | `str` | `'starter'` |" in page


def test_every_command_is_in_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "help_of", lambda _main, *words: f"help of {' '.join(words)}")
    page = reference.commands_page()
    assert [f"## {name}" in page for name in reference.PACKAGES] == [True] * 3


def test_a_command_has_the_help_of_its_subcommands() -> None:
    from cudal1_data.cli import main

    found = dict(reference.helps(main, "cudal1-data"))
    assert {("cudal1-data",), ("cudal1-data", "list"), ("cudal1-data", "corpus", "build")} <= set(found)
    assert "usage: cudal1-data corpus build" in found["cudal1-data", "corpus", "build"]


def test_troubleshooting_has_each_layer_and_error() -> None:
    from cudal1_env.errors import MachineError
    from cudal1_worker.sandbox import LAYERS

    page = reference.troubleshooting_page()
    assert [layer for layer in LAYERS if layer not in page] == []
    assert MachineError.__name__ in page


def test_the_glossary_is_short_and_in_order(repository: Path) -> None:
    terms = re.findall(r"^\| ([\w -]+?)(?: \(\w\))? \|", (repository / "docs/glossary.md").read_text(), re.MULTILINE)[
        2:
    ]
    assert 20 <= len(terms) <= MAX_TERMS
    assert terms == sorted(terms)


@pytest.mark.slow
def test_the_notebook_prints_what_it_shows() -> None:
    shown = json.loads(NOTEBOOK.read_text())
    again = notebook.executed(shown)
    assert documents.masked(outputs(again["cells"])) == documents.masked(outputs(shown["cells"]))
