"""Merge of a judge's records into a corpus, from files of records or of a sweep."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from cudal1_data.corpus.model import Figures, Pair, Speedup, label_of
from cudal1_data.corpus.store import Corpus
from cudal1_data.errors import DataError
from cudal1_data.faults import fault_text
from cudal1_data.hashes import digest
from cudal1_data.kernelgen.make import BACKENDS
from cudal1_data.sources.kernelbench import is_kernelbench
from cudal1_data.techniques import classify

OTHER = "other"
"""Backend of programs that fit none of `BACKENDS`."""

_ROW: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class _Interval(BaseModel):
    low: float
    point: float
    high: float


class _Machine(BaseModel):
    device: str
    name: str


class _Record(BaseModel):
    """The fields read from `cudal1_env.records.Evaluation`."""

    model_config = ConfigDict(frozen=True)

    protocol: str
    id: str
    created_at: str
    task: str
    task_sha256: str
    task_source: str
    source: str
    source_sha256: str
    status: str
    speedup: _Interval | None = None
    speedups: dict[str, _Interval] = {}
    precision: str
    machine: _Machine | None = None
    roofline_ms: float | None = None
    roofline_fraction: float | None = None

    @property
    def latency_ms(self) -> float | None:
        """The program's latency: roofline time over roofline fraction."""
        return self.roofline_ms / self.roofline_fraction if self.roofline_ms and self.roofline_fraction else None

    @property
    def without_texts(self) -> bool:
        """Whether the record has no texts, as from `sweep --no-texts`."""
        return not self.source and not self.task_source and digest("") != self.task_sha256


@dataclass
class Merged:
    """Counts of a merge."""

    added: int = 0
    """Records added to pairs that the corpus had."""
    known: int = 0
    """Records that the corpus had already."""
    new_pairs: int = 0
    """Programs that the corpus lacked."""
    left_out: list[str] = field(default_factory=list[str])
    """Lines whose record was not merged, with the reason."""


def merge(corpus: Corpus, path: Path) -> Merged:
    """Add the records of a file to a corpus. Repeating it changes nothing.

    Args:
        corpus: Corpus to extend. Programs that it lacks become pairs without a template. They take family, level,
            split and overlap from a template's pair with the same reference; until there is one, they count as test
            data.
        path: File with a record or a sweep line in each line. Records without texts are added only to programs that
            the corpus has.

    Raises:
        DataError: A line is no record, or its hashes do not match its programs; the message names it. Nothing is
            merged then.
        OSError: The file cannot be read.
    """
    done = Merged()
    whole: list[_Record] = []
    bare: list[tuple[str, _Record]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if line.strip():
            where = f"{path}:{number}"
            record = _read(line, where)
            if record is None or record.machine is None:
                done.left_out.append(f"{where}: the program never reached a machine")
            elif (record.task_sha256, record.source_sha256) not in corpus and is_kernelbench(
                record.task, record.task_source
            ):
                done.left_out.append(f"{where}: {record.task} is a reference of KernelBench, for tests alone")
            elif record.without_texts:
                bare.append((where, record))
            else:
                whole.append(record)
    for record in whole:
        _merge_one(corpus, record, done)
    for where, record in bare:
        if (record.task_sha256, record.source_sha256) in corpus:
            _merge_one(corpus, record, done)
        else:
            reason = "it holds no texts (sweep --no-texts), and the corpus has no such program"
            done.left_out.append(f"{where}: {reason}")
    corpus.settle()
    return done


def _read(line: bytes, where: str) -> _Record | None:
    try:
        values = _ROW.validate_json(line)
        values = values.get("evaluation", values)
        if values is None:
            return None
        record = _Record.model_validate(values)
    except ValidationError as error:
        raise DataError(f"{where}: no record of cudal1-env evaluate, sweep or verify: {fault_text(error)}") from error
    unlike = digest(record.source) != record.source_sha256 or digest(record.task_source) != record.task_sha256
    if unlike and not record.without_texts:
        raise DataError(
            f"{where}: the hashes of the record are not those of its programs, so it was changed; leave it out"
        )
    return record


def _merge_one(corpus: Corpus, record: _Record, done: Merged) -> None:
    key = record.task_sha256, record.source_sha256
    if key in corpus:
        pair = corpus[key].model_copy(update={"evaluations": (_figures(record),)})
        if corpus.add(pair):
            done.added += 1
        else:
            done.known += 1
        return
    tags = classify(record.source, record.task_source)
    corpus.add(
        Pair(
            task=record.task,
            family=record.task.rpartition("/")[2].partition("-")[0],
            level=1,
            split="test",
            reference=record.task_source,
            reference_sha256=record.task_sha256,
            source=record.source,
            source_sha256=record.source_sha256,
            backend=tags.backend if tags is not None and tags.backend in BACKENDS else OTHER,
            techniques=() if tags is None else tags.techniques,
            label=label_of([record.status]),
            evaluations=(_figures(record),),
        )
    )
    done.new_pairs += 1


def _figures(record: _Record) -> Figures:
    assert record.machine is not None
    given = {} if record.speedup is None else {"eager": record.speedup, **record.speedups}
    return Figures(
        record=record.id,
        status=record.status,
        speedups=tuple(
            Speedup(baseline=name, low=one.low, point=one.point, high=one.high) for name, one in given.items()
        ),
        latency_ms=record.latency_ms,
        roofline_fraction=record.roofline_fraction,
        precision=record.precision,
        device=record.machine.device,
        machine=record.machine.name,
        created_at=record.created_at,
        protocol=record.protocol,
    )
