"""Write the record of a lease's training and evaluations: `python benchmarks/training_record.py OUT RECORD.jsonl.gz`.

OUT is the folder of a lease (`benchmarks/lease/`): its runs, which have a `metrics.jsonl`, and its evaluations, each a
folder with an archive and, once complete, a table (`cudal1-agent evaluate --out OUT/NAME --json > OUT/NAME.json`).
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cudal1_env.archive import Archive

_STEPS = 100
"""Every how many steps the metrics are kept."""
_FIGURES = ("loss", "padding_share", "mean_token_accuracy")
_TEXTS = 10
"""Every how many answers the text is kept; those of correct answers all are."""
_DIGITS = 4
_LONGEST = 200
"""Maximum number of characters of a message."""


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("record", type=Path)
    options = parser.parse_args()
    lines = [line for folder in sorted(options.out.iterdir()) for line in lines_of(folder)]
    text = "".join(json.dumps(rounded(line)) + "\n" for line in lines)
    options.record.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    answers = [line for line in lines if line["event"] == "answer"]
    for stage in dict.fromkeys(line["stage"] for line in answers):
        statuses = [line["status"] for line in answers if line["stage"] == stage]
        print(f"{stage}: {statuses.count('CORRECT')} of {len(statuses)} correct")


def lines_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run or of an evaluation; none for other folders."""
    if (folder / "metrics.jsonl").exists():
        for text in (folder / "metrics.jsonl").read_text().splitlines():
            line = json.loads(text)
            if line["event"] == "step" and line["step"] % _STEPS == 0:
                kept = {name: line[name] for name in ("stage", "step", *_FIGURES) if name in line}
                yield {"event": "step", "run": folder.name, **kept}
            elif line["event"] == "seconds":
                yield {**line, "run": folder.name}
    elif (folder / "archive.sqlite").exists():
        table = folder.with_suffix(".json")
        if table.exists() and table.stat().st_size:
            found = json.loads(table.read_text())
            yield {"event": "table", "stage": folder.name, "table": found.get("table", found)}
        with Archive(folder / "archive.sqlite") as archive:
            for number, one in enumerate(archive.evaluations()):
                line = {
                    "event": "answer",
                    "stage": folder.name,
                    "protocol": one.protocol,
                    "task": one.task,
                    "status": str(one.status),
                    "source_sha256": one.source_sha256,
                    "message": one.message[:_LONGEST],
                }
                yield line | ({"source": one.source} if one.correct or number % _TEXTS == 0 else {})


def rounded(value: Any) -> Any:
    """Return a JSON value with floating-point numbers of a few digits."""
    match value:
        case float():
            return float(f"{value:.{_DIGITS}g}")
        case dict():
            return {name: rounded(one) for name, one in value.items()}
        case list():
            return [rounded(one) for one in value]
        case _:
            return value


if __name__ == "__main__":
    main()
