"""Write the site's reference pages from the code: commands, settings, record fields, messages of `doctor`.

    uv run scripts/reference.py FOLDER     write the pages below a folder

The site's build calls `pages()` (scripts/site_hooks.py); the pages are not committed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import json
import os
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest import mock

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

PACKAGES = ("cudal1-data", "cudal1-env", "cudal1-agent")
HELP_COLUMNS = "100"


def pages() -> dict[str, str]:
    """Return the text of each generated page by its path in the site."""
    return {
        "reference/commands.md": commands_page(),
        "reference/settings.md": settings_page(),
        "reference/record.md": record_page(),
        "troubleshooting.md": troubleshooting_page(),
    }


def help_of(main: Callable[[], object], *words: str) -> str:
    """Return a command's `--help` output."""
    printed = io.StringIO()
    settings = {"COLUMNS": HELP_COLUMNS, "NO_COLOR": "1"}
    with (
        mock.patch.dict(os.environ, settings),
        mock.patch.object(sys, "argv", [*words, "--help"]),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main()
    return printed.getvalue().strip()


def subcommands(usage: str) -> list[str]:
    """Return the subcommands in a command's help.

    >>> subcommands("usage: tool [-h] {list,show} ... subcommands ...")
    ['list', 'show']
    >>> subcommands("usage: tool [-h] {small,large} ... positional arguments ...")
    []
    """
    if " subcommands " not in usage:
        return []
    found = re.search(r"^usage: [^{]*?\[-h\] (?:\[[^]]*\] )*\{([\w,-]+)\}", usage)
    return found[1].split(",") if found else []


def helps(main: Callable[[], object], *words: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield a command's words and help, then those of its subcommands."""
    text = help_of(main, *words)
    yield words, text
    for name in subcommands(text):
        yield from helps(main, *words, name)


def commands_page() -> str:
    """Return the help of every command."""
    lines = [
        "# Commands",
        "",
        "What `--help` prints. Results go to standard output, everything else to standard error.",
    ]
    programs = {one.name: one for one in entry_points(group="console_scripts") if one.name in PACKAGES}
    for package in PACKAGES:
        for words, text in helps(programs[package].load(), package):
            lines += ["", f"{'#' * min(len(words) + 1, 3)} {' '.join(words)}", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def attribute_texts(owner: type) -> dict[str, tuple[str, str]]:
    """Return annotation and description (the text under the declaration) of each attribute of a class."""
    found: dict[str, tuple[str, str]] = {}
    for base in owner.__bases__:
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= attribute_texts(base)
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)
    for statement, after in zip(definition.body, [*definition.body[1:], None], strict=True):
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            text = after.value.value
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = (ast.unparse(statement.annotation), text)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found[statement.targets[0].id] = ("", text)
    return found


def cell(text: str) -> str:
    """Return text as the cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return text as code in the cell of a Markdown table."""
    return f"`{cell(text)}`" if text else ""


def default_of(model: type[BaseModel], name: str) -> str:
    """Return a field's default in Python's notation; the values of a dict as JSON."""
    field = model.model_fields[name]
    value: Any = field.default
    if field.default_factory is not None:
        value = typing.cast("Callable[[], Any]", field.default_factory)()
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, dict):
        table = typing.cast("dict[str, Any]", value)
        return ", ".join(f"{key} = {json.dumps(entry)}" for key, entry in table.items()) or "empty"
    return repr(value)


def nested(model: type[BaseModel]) -> list[type]:
    """Return the models and enums nested in a model's fields, each once, in order."""
    found: list[type] = []

    def visit(annotation: Any) -> None:
        for argument in typing.get_args(annotation):
            visit(argument)
        if inspect.isclass(annotation) and issubclass(annotation, BaseModel | Enum) and annotation not in found:
            found.append(annotation)
            if issubclass(annotation, BaseModel):
                for field in annotation.model_fields.values():
                    visit(field.annotation)

    for field in model.model_fields.values():
        visit(field.annotation)
    return found


def table_of(owner: type) -> list[str]:
    """Return the lines of a section on a model or an enum."""
    lines = ["", f"## {owner.__name__}", "", first_sentence(owner), ""]
    texts = attribute_texts(owner)
    if issubclass(owner, Enum):
        lines += ["| value | meaning |", "| --- | --- |"]
        return lines + [f"| {code(str(one.value))} | {cell(texts[one.name][1])} |" for one in owner]
    assert issubclass(owner, BaseModel)
    lines += ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name in owner.model_fields:
        annotation, text = texts[name]
        lines.append(f"| {code(name)} | {code(annotation)} | {code(default_of(owner, name))} | {cell(text)} |")
    return lines


def first_sentence(owner: type) -> str:
    """Return the first paragraph of a class's docstring."""
    return " ".join((inspect.getdoc(owner) or "").split("\n\n", 1)[0].split())


def settings_page() -> str:
    """Return the page on the settings of training runs and of the judge."""
    from cudal1_agent.settings import Settings
    from cudal1_env.judge.settings import JudgeSettings

    lines = ["# Settings", "", "A training run reads them from the TOML file that `--config` names: a table for each"]
    lines += [
        "section below. `configs/quickstart.toml` spells out all defaults, `configs/pretrained.toml` what a named"
    ]
    lines += ["model changes. The table `[judge]` has the fields of `JudgeSettings`."]
    for owner in (Settings, *nested(Settings), JudgeSettings):
        lines += table_of(owner)
    return "\n".join(lines) + "\n"


def record_page() -> str:
    """Return the page on the fields of a record."""
    from cudal1_env.records import Evaluation

    lines = ["# The record of a verdict", "", "`cudal1-env evaluate --json` prints it as one line of JSON;"]
    lines += [
        "`info['evaluation']` of the environment is the same object. `Evaluation.model_json_schema()` is its schema."
    ]
    for owner in (Evaluation, *nested(Evaluation)):
        lines += table_of(owner)
    return "\n".join(lines) + "\n"


def troubleshooting_page() -> str:
    """Return the page on the messages of `doctor`, with what to do, and every error by package."""
    from cudal1_env.doctor import Findings
    from cudal1_env.records import Machine
    from cudal1_env.sandbox.advice import ADVICE, advice
    from cudal1_env.stats import DEFAULT_SPREAD

    poor = Findings(
        machine=Machine(
            device="cpu",
            name="CPU",
            cores=1,
            core=None,
            kernel="Linux",
            python="3.11",
            torch="2.13",
            driver=None,
            cuda=None,
        ),
        device="cpu",
        gpu=None,
        layers=dict.fromkeys(ADVICE, "Operation not permitted"),
        attempts={},
        tools=dict.fromkeys(("gcc", "g++", "ninja", "nvcc")),
        spread=DEFAULT_SPREAD,
        calibrated=False,
    )
    lines = [
        "# Troubleshooting",
        "",
        "`cudal1-env doctor` says what this machine lacks. The judge works with what is left,",
    ]
    lines += ["and each record names the sandbox layers that were active.", "", "## Missing sandbox layers", ""]
    lines += ["| layers | what brings them back |", "| --- | --- |"]
    for line in advice(list(ADVICE)):
        names, _, text = line.partition(": ")
        lines.append(f"| {cell(names)} | {cell(text)} |")
    lines += ["", "## What doctor prints on a machine that lacks everything", "", "```text"]
    lines += [line for line in poor.text().splitlines() if "to bring back" not in line]
    lines += [
        "```",
        "",
        "## Errors",
        "",
        "A bad program is a [status](reference/record.md#status). These are exceptions:",
    ]
    for package in ("cudal1_data", "cudal1_env", "cudal1_agent"):
        lines += ["", f"### {package}", "", "| error | meaning |", "| --- | --- |"]
        lines += [f"| {code(one.__name__)} | {cell(first_sentence(one))} |" for one in errors_of(package)]
    return "\n".join(lines) + "\n"


def errors_of(package: str) -> list[type]:
    """Return the exceptions of a package in the order of their definition."""
    module = importlib.import_module(f"{package}.errors")
    return [one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__]


def main() -> None:
    """Write the pages below the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the pages")
    folder: Path = parser.parse_args().folder
    for name, text in pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
