"""`cudal1-data tags`: the techniques that programs show."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro
from tyro.conf import Positional

from cudal1_data.commands.broken import first_names, report_broken
from cudal1_data.errors import BrokenTaskError, DataError
from cudal1_data.progress import paced

if TYPE_CHECKING:
    from cudal1_data.techniques import Tags, TechniqueRow

PUBLISHED = "score_default"
"""Column of published speedups over the unchanged reference."""
DEFAULT_COLUMN = "custom_code"
"""Column of the programs in CUDA-L1's release."""


class Program(NamedTuple):
    """A program that was read."""

    name: str
    """Its file or task."""
    tags: Tags | None
    """Its techniques; None if it is no program."""
    speedup: float | None = None
    """Speedup over its reference, if known."""


@dataclass(frozen=True)
class TagCommand:
    """List the techniques that programs use, and the speedups by technique.

    Programs are parsed and searched (docs/techniques.md), never executed.

    Example: cudal1-data tags bundled --json
    """

    file: Annotated[Positional[Path], tyro.conf.arg(metavar="FILE")]
    """A program (.py), a corpus (`bundled`, .parquet, .jsonl), a table with a column of programs (.jsonl, .parquet), or
    records of verdicts (.jsonl)."""
    column: str = DEFAULT_COLUMN
    """Table column that holds the programs."""
    task: str | None = None
    """Task whose reference a single program (.py) replaces; with it, the tags show omitted work."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""

    def run(self) -> None:
        """Tag the programs and print the result."""
        from cudal1_data.techniques import top_techniques

        found = self.programs()
        tagged = [(one.name, one.tags) for one in found if one.tags is not None]
        without = [one.name for one in found if one.tags is None]
        table = top_techniques((one.tags, one.speedup) for one in found if one.tags is not None)
        if self.json_:
            programs = {name: tags.model_dump(mode="json") for name, tags in tagged}
            rows = [row.model_dump() for row in table]
            print(json.dumps({"programs": programs, "without": without, "techniques": rows}))
            return
        width = max((len(name) for name, _ in tagged), default=0)
        for name, tags in tagged:
            print(f"{name:{width}}  {tags.backend:16}  {', '.join(tags.techniques) or '-'}")
        if without:
            print(f"no program in {len(without)} of {len(found)}: {first_names(without)}")
        if len(tagged) == 1:
            for tag, signs in tagged[0][1].signs.items():
                print(f"  {tag}: {'; '.join(signs)}")
        elif table:
            print("\n" + table_text(table))

    def programs(self) -> list[Program]:
        """Read the programs.

        Raises:
            DataError: The file does not exist or holds no programs.
        """
        from cudal1_data.corpus.store import BUNDLED

        if self.file != BUNDLED and not self.file.exists():
            raise DataError(f"no file {self.file}; name a program, a corpus, a table or records")
        if self.file.suffix == ".py":
            return [self._one()]
        if self.task is not None:
            raise DataError(f"--task {self.task} is for a single program (.py); {self.file} has its own references")
        if _is_corpus(self.file):
            return self._corpus()
        records = _records(self.file)
        return self._table() if records is None else records

    def _one(self) -> Program:
        from cudal1_data.sources import load_task
        from cudal1_data.task import parse
        from cudal1_data.techniques import classify

        text = self.file.read_text(encoding="utf-8-sig", errors="replace")
        reference = None if self.task is None else load_task(self.task).source
        parse(text, where=str(self.file))
        tags = classify(text, reference)
        if tags is None:
            raise BrokenTaskError(f"{self.file}: the program defines no class ModelNew")
        return Program(self.file.name, tags)

    def _corpus(self) -> list[Program]:
        if self.column not in (DEFAULT_COLUMN, "source"):
            raise DataError(f"--column {self.column} is for tables; the programs of a corpus are in source")
        from cudal1_data.corpus.store import load_corpus
        from cudal1_data.techniques import classify

        pairs = load_corpus(self.file)
        found: list[Program] = []
        for pair in paced(pairs, len(pairs), "programs tagged"):
            speedup = pair.best()
            found.append(
                Program(
                    f"{pair.task}:{pair.source_sha256[:8]}",
                    classify(pair.source, pair.reference),
                    None if speedup is None else speedup.point,
                )
            )
        if not found:
            raise BrokenTaskError(f"{self.file}: the corpus has no pairs")
        return found

    def _table(self) -> list[Program]:
        from cudal1_data.sources import load_suite
        from cudal1_data.techniques import classify

        suite = load_suite(self.file)
        report_broken(suite)
        found = [
            Program(task.id, classify(text[self.column], task.source), suite.scores.get(task.id, {}).get(PUBLISHED))
            for task in suite
            if self.column in (text := suite.programs.get(task.id, {}))
        ]
        if not found:
            columns = sorted({name for programs in suite.programs.values() for name in programs})
            raise BrokenTaskError(
                f"{self.file}: there are no programs in the column {self.column}; "
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


def _is_corpus(path: Path) -> bool:
    """Return whether a file or folder holds pairs, judged by its first row."""
    from cudal1_data.corpus.store import BUNDLED, corpus_files
    from cudal1_data.parquet import each_row

    if path == BUNDLED or (path.is_dir() and corpus_files(path)):
        return True
    if path.suffix not in (".parquet", ".jsonl"):
        return False
    try:
        if path.suffix == ".parquet":
            columns = next((row.keys() for row in each_row(path)), ())
        else:
            with path.open("rb") as lines:
                columns = _row(next((line for line in lines if line.strip()), b"{}")).keys()
    except BrokenTaskError:
        return False  # the next reader reports the fault
    return {"reference_sha256", "source_sha256", "label"} <= set(columns)


def _records(path: Path) -> list[Program] | None:
    """Return the programs of a file of verdicts or sweep lines; None for other files."""
    if path.suffix != ".jsonl":
        return None
    from cudal1_data.techniques import classify

    found: list[Program] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = _row(line)
            except BrokenTaskError as error:
                raise BrokenTaskError(f"{path}, line {number}: {error}") from error
            if not ("task_source" in row or "evaluation" in row):
                return None
            record: dict[str, Any] = row.get("evaluation", row) or {}
            if record.get("source"):
                speedup = record["speedup"]["point"] if record.get("status") == "CORRECT" else None
                tags = classify(record["source"], record.get("task_source"))
                found.append(Program(str(record["task"]), tags, speedup))
    if not found:
        raise BrokenTaskError(f"{path}: no records with programs, and no table of programs")
    return found


def _row(line: str | bytes) -> dict[str, Any]:
    """Read a line of a table.

    Raises:
        BrokenTaskError: The line holds no JSON object.
    """
    from pydantic import TypeAdapter, ValidationError

    from cudal1_data.faults import fault_text

    try:
        return TypeAdapter(dict[str, Any]).validate_json(line)
    except ValidationError as error:
        raise BrokenTaskError(f"not JSON: {fault_text(error)}") from error
