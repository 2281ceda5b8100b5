"""Agreement of technique tags with labels made by hand: `python benchmarks/techniques.py FILE`.

FILE is CUDA-L1's release for the H100; the labels (docs/results/technique_labels.json) name its rows and contain no
program. Prints precision and recall for each tag and set of labels.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import tyro
from cudal1_data import Suite, load_suite
from cudal1_data.techniques import TECHNIQUES, classify

LABELS = Path(__file__).parents[1] / "docs" / "results" / "technique_labels.json"


def main(file: tyro.conf.Positional[Path]) -> None:
    """Compare and print.

    Args:
        file: The release file.
    """
    suite = load_suite(file)
    for name, labels in json.loads(LABELS.read_text(encoding="utf-8")).items():
        print(f"{name}: {len(labels)} programs")
        for line in compared(suite, labels):
            print(f"  {line}")


def compared(suite: Suite, labels: dict[str, dict[str, list[str]]]) -> list[str]:
    """Return one line for each tag, then all of them, then the backends."""
    correct: Counter[str] = Counter()
    incorrect: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    backends = 0
    for task, label in labels.items():
        tags = classify(suite.programs[task]["custom_code"], suite[task].source)
        found = set(tags.techniques) if tags is not None else set[str]()
        correct.update(found & set(label["techniques"]))
        incorrect.update(found - set(label["techniques"]))
        missed.update(set(label["techniques"]) - found)
        backends += tags is not None and tags.backend == label["backend"]
    lines = [_line(tag, correct[tag], incorrect[tag], missed[tag]) for tag in TECHNIQUES]
    return [
        *lines,
        _line("all", correct.total(), incorrect.total(), missed.total()),
        f"backend: {backends}/{len(labels)}",
    ]


def _line(name: str, correct: int, incorrect: int, missed: int) -> str:
    return f"{name}: precision {correct}/{correct + incorrect}, recall {correct}/{correct + missed}"


if __name__ == "__main__":
    tyro.cli(main)
