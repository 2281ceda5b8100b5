"""Small corpora: built from starter tasks, with the verdicts of a double merged in as records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cudal1_data import Device, load_suite
from cudal1_data.corpus import Corpus, Pair
from cudal1_data.corpus.build import build
from cudal1_data.corpus.merge import merge
from cudal1_env.records import Machine, Status
from doubles import evaluator as doubles

TASKS = ("starter/swish_chain", "starter/row_logsumexp", "starter/column_variance")


def built(device: Device, *, names: Sequence[str] = TASKS, per_task: int = 10, failures: int = 2) -> list[Pair]:
    """The pairs of some starter tasks, without verdicts."""
    suite = load_suite("starter", device=device)
    return list(build([suite[name] for name in names], per_task=per_task, failures=failures))


def judged(
    pairs: Iterable[Pair],
    verdicts: Iterable[tuple[Pair, float | Status]],
    folder: Path,
    *,
    device: Device = "cuda",
    protocol: str | None = None,
) -> Corpus:
    """A corpus of the pairs into which verdicts are merged: a speedup, or the status of a failure."""
    corpus = Corpus(pairs)
    machine = Machine(device=device, name="a machine", cores=2, kernel="6", python="3", torch="2", core=None)
    lines: list[str] = []
    for pair, verdict in verdicts:
        correct = not isinstance(verdict, Status)
        record = doubles.evaluation(
            pair.task,
            pair.source,
            Status.CORRECT if correct else verdict,
            verdict if correct else 1.0,
            task_source=pair.reference,
        )
        changes = {"machine": machine} | ({} if protocol is None else {"protocol": protocol})
        lines.append(record.model_copy(update=changes).model_dump_json() + "\n")
    path = folder / "records.jsonl"
    path.write_text("".join(lines))
    merge(corpus, path)
    return corpus
