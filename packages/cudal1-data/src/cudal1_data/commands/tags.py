"""`cudal1-data tags`: the techniques that programs show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from tyro.conf import Positional

from cudal1_data.commands.broken import report_broken
from cudal1_data.errors import BrokenTaskError
from cudal1_data.suites import load_suite
from cudal1_data.techniques import Tags, TechniqueRow, classify, top_techniques

ROW: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
PUBLISHED = "score_default"
"""The column of published speedups against the reference as it is."""


class TagCommand(BaseModel):
    """Tell which techniques programs show, and how fast the published ones are by technique.

    Programs are parsed and searched (docs/techniques.md), never executed.
    """

    model_config = ConfigDict(frozen=True)

    file: Positional[Path]
    """A program (.py), a table with a column of programs (.jsonl, .parquet), or records of verdicts (.jsonl)."""
    column: str = "custom_code"
    """The table's column of programs."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""

    def run(self) -> None:
        """Tag and print."""
        found = self.programs()
        tagged = [(name, tags) for name, tags, _ in found if tags is not None]
        without = [name for name, tags, _ in found if tags is None]
        table = top_techniques((tags, speedup) for _, tags, speedup in found if tags is not None)
        if self.json_:
            programs = {name: tags.model_dump(mode="json") for name, tags in tagged}
            rows = [row.model_dump() for row in table]
            print(json.dumps({"programs": programs, "without": without, "techniques": rows}))
            return
        width = max((len(name) for name, _ in tagged), default=0)
        for name, tags in tagged:
            print(f"{name:{width}}  {tags.way:11}  {', '.join(tags.techniques) or '-'}")
        if without:
            print(f"no program in {len(without)} of {len(found)}: {', '.join(without)}")
        if len(tagged) == 1:
            for tag, signs in tagged[0][1].signs.items():
                print(f"  {tag}: {'; '.join(signs)}")
        elif table:
            print("\n" + table_text(table))

    def programs(self) -> list[tuple[str, Tags | None, float | None]]:
        """Read the programs: name, tags, speedup where it is known."""
        if self.file.suffix == ".py":
            text = self.file.read_text(encoding="utf-8", errors="replace")
            return [(self.file.name, classify(text), None)]
        records = _records(self.file)
        if records is not None:
            return records
        suite = load_suite(self.file)
        report_broken(suite)
        found = [
            (task.id, classify(programs[self.column], task.source), suite.scores.get(task.id, {}).get(PUBLISHED))
            for task in suite
            if self.column in (programs := suite.programs.get(task.id, {}))
        ]
        if not found:
            columns = sorted({name for programs in suite.programs.values() for name in programs})
            raise BrokenTaskError(
                f"{self.file}: expected programs in the column {self.column}, found none; "
                + (f"--column takes {', '.join(columns)}" if columns else "no column ends in _code")
            )
        return found


def table_text(rows: tuple[TechniqueRow, ...]) -> str:
    """Return the table as aligned text."""
    lines = [f"{'technique':76}  programs  with speedup   mean  geometric mean"]
    for row in rows:
        mean, geometric = (f"{value:.2f}" if value is not None else "-" for value in (row.mean, row.geometric_mean))
        name = f"{row.tag} ({row.name})"
        lines.append(f"{name:76}  {row.programs:8}  {row.correct:12}  {mean:>5}  {geometric:>14}")
    return "\n".join(lines)


def _records(path: Path) -> list[tuple[str, Tags | None, float | None]] | None:
    """Read verdicts, alone or in the lines of a sweep; None where the file holds something else."""
    if path.suffix != ".jsonl":
        return None
    found: list[tuple[str, Tags | None, float | None]] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = ROW.validate_json(line)
            except ValidationError as error:
                raise BrokenTaskError(f"{path}, line {number}: expected a JSON object: {error}") from error
            if not ("task_source" in row or "evaluation" in row):
                return None
            record: dict[str, Any] = row.get("evaluation", row) or {}
            if record.get("source"):
                speedup = record["speedup"]["point"] if record.get("status") == "CORRECT" else None
                found.append((str(record["task"]), classify(record["source"], record.get("task_source")), speedup))
    return found
