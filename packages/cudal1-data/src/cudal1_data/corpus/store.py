"""A corpus on disk: Parquet for loading, JSON lines for reading and comparing."""

from __future__ import annotations

import importlib
import json
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import ValidationError

from cudal1_data.corpus.model import Key, Pair, label_of, token_count
from cudal1_data.corpus.old_names import OLD_FIELDS
from cudal1_data.errors import DataError
from cudal1_data.faults import fault_text
from cudal1_data.parquet import each_row
from cudal1_data.suggest import nearest
from cudal1_data.task import Split

SPLITS = tuple(get_args(Split))
FILES = (*(f"{split}.parquet" for split in SPLITS), "pairs.parquet")
"""Files in a folder from `cudal1-data corpus export`: one per split. Earlier versions wrote the last one only."""

BUNDLED = Path("bundled")
"""Name of the package's own corpus: pairs that a judge on a GPU found correct."""

OF_TASK = ("family", "level", "split", "overlaps")
"""Task fields that a pair has and a record lacks."""

_MEASURED = ("latency_ms", "roofline_fraction", "memory_bytes")
"""Figures of the latest GPU evaluation that get their own columns."""

_ROW_GROUP = 1000
"""Rows per write."""

_ORDER = ("task", "label", "backend", "template", "source_sha256")


class Corpus:
    """Pairs by key, in an order that does not depend on the order of insertion.

    Args:
        pairs: The pairs. Of those with one key, the first from a template is kept, else the first, with the
            evaluations of all.
    """

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        self._pairs: dict[Key, Pair] = {}
        self._texts: dict[str, str] = {}
        for pair in pairs:
            self.add(pair)

    def __len__(self) -> int:
        """Count the pairs."""
        return len(self._pairs)

    def __iter__(self) -> Iterator[Pair]:
        """Yield the pairs in order."""
        return iter(sorted(self._pairs.values(), key=_place))

    def __contains__(self, key: object) -> bool:
        """Return whether the corpus has a pair of that key."""
        return key in self._pairs

    def __getitem__(self, key: Key) -> Pair:
        """Return the pair of a key."""
        return self._pairs[key]

    def add(self, pair: Pair) -> bool:
        """Add a pair, or merge its evaluations and template into the pair with the same key.

        A pair without a template came with a record; its label follows from all its evaluations.

        Returns:
            Whether the corpus changed.
        """
        known = self._pairs.get(pair.key)
        # Hundreds of pairs share a reference: keep one text in memory.
        shared = self._texts.setdefault(pair.reference_sha256, pair.reference)
        if known is None:
            self._pairs[pair.key] = pair.model_copy(update={"reference": shared})
            return True
        had = {one.record for one in known.evaluations}
        new = [one for one in pair.evaluations if one.record not in had]
        built = bool(pair.template) and not known.template
        if not new and not built:
            return False
        whole = tuple(sorted((*known.evaluations, *new), key=lambda one: (one.created_at, one.record)))
        changes: dict[str, object] = {"reference": shared, "evaluations": whole}
        if not built and not known.template:
            changes["label"] = label_of(one.status for one in whole)
        self._pairs[pair.key] = (pair if built else known).model_copy(update=changes)
        return True

    def settle(self, made: Iterable[Pair] = ()) -> None:
        """Set the task fields of pairs: family, level, split, overlap.

        Args:
            made: New pairs, one per task; all pairs of that task and reference take their fields. Other pairs
                without a template take those of any template's pair with the same reference.
        """
        newest = {(pair.task, pair.reference_sha256): pair for pair in made}
        built = {
            pair.reference_sha256: newest.get((pair.task, pair.reference_sha256), pair)
            for pair in self._pairs.values()
            if pair.template
        }
        for key, pair in self._pairs.items():
            one = newest.get((pair.task, pair.reference_sha256))
            if one is None and not pair.template:
                one = built.get(pair.reference_sha256)
            if one is not None:
                self._pairs[key] = pair.model_copy(update={name: getattr(one, name) for name in OF_TASK})

    def save(self, path: Path) -> None:
        """Write the corpus as Parquet or JSON lines, by the file's ending; an interrupted write leaves the old file.

        Raises:
            DataError: The ending is neither .parquet nor .jsonl.
            OSError: The file cannot be written.
        """
        with CorpusWriter(path) as file:
            file.write(self)


class CorpusWriter:
    """Streaming writer of a corpus, as Parquet or JSON lines by the file's ending.

    It holds at most one row group of pairs in memory. The file appears when all is written: an interrupted write
    leaves the old one.

    Args:
        path: The file.

    Raises:
        DataError: The ending is neither .parquet nor .jsonl.
        OSError: The file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        check_ending(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._aside = path.with_name(f".{path.name}.part")
        self._write = _rows_of(self._aside) if path.suffix == ".parquet" else _lines_of(self._aside)
        self._waiting: list[Pair] = []

    def __enter__(self) -> Self:
        """Open the file."""
        next(self._write)
        return self

    def write(self, pairs: Iterable[Pair]) -> None:
        """Append pairs."""
        for pair in pairs:
            self._waiting.append(pair)
            if len(self._waiting) == _ROW_GROUP:
                self._flush()

    def _flush(self) -> None:
        self._write.send(self._waiting)
        self._waiting = []

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the file; move it into place if nothing failed."""
        try:
            if kind is None and self._waiting:
                self._flush()
            self._write.close()
            if kind is None:
                self._aside.replace(self.path)
        finally:
            self._aside.unlink(missing_ok=True)


def check_ending(path: Path) -> None:
    """Check that a corpus can be written to a file.

    Raises:
        DataError: Its ending is neither .parquet nor .jsonl.
    """
    if path.suffix not in (".parquet", ".jsonl"):
        raise DataError(f"cannot write a corpus to {path}: name a file that ends in .parquet or .jsonl")


def corpus_files(path: Path | str) -> tuple[Path, ...]:
    """Return the files of a corpus: the path itself, those in a folder from `corpus export`, or the package's.

    Raises:
        DataError: A file or folder here is also named `bundled`.
    """
    path = Path(path)
    if path == BUNDLED:
        if path.exists():
            raise DataError(
                f"the name {path} stands for the package's own corpus, and a file or folder here has the same name; "
                "rename it, or name it by its whole path"
            )
        path = Path(__file__).parent / BUNDLED
    return tuple(path / name for name in FILES if (path / name).is_file()) if path.is_dir() else (path,)


def load_corpus(path: Path | str) -> Corpus:
    """Read a corpus.

    Args:
        path: A .parquet or .jsonl file, or a folder from `corpus export`; `bundled` for the package's corpus.

    Raises:
        DataError: The file is missing or no corpus; the message names it, and the line or row.
        OSError: The file cannot be read.
    """
    files = corpus_files(path)
    if not files or (files[0].suffix in (".parquet", ".jsonl") and not files[0].is_file()):
        raise _missing(Path(path))
    if files[0].suffix == ".parquet":
        return Corpus(_pair(row, file, number) for file in files for number, row in enumerate(each_row(file), 1))
    if files[0].suffix == ".jsonl":
        with files[0].open("rb") as lines:
            return Corpus(_line(line, files[0], number) for number, line in enumerate(lines, 1) if line.strip())
    if nearest(str(path), [str(BUNDLED)]):
        raise DataError(f"there is no corpus {str(path)!r}; did you mean '{BUNDLED}'?")
    raise DataError(f"{path} is no corpus: name a .parquet or .jsonl file, or a folder with {', '.join(FILES)}")


def _place(pair: Pair) -> tuple[str, ...]:
    return tuple(getattr(pair, name) for name in _ORDER)


def _line(text: bytes, path: Path, number: int) -> Pair:
    try:
        return Pair.model_validate_json(text)
    except ValidationError as error:
        raise _fault(path, f"line {number}", fault_text(error)) from error


def _pair(row: dict[str, Any], path: Path, number: int) -> Pair:
    try:
        return Pair.model_validate(_from_row(row))
    except ValidationError as error:
        raise _fault(path, f"row {number}", fault_text(error)) from error
    except json.JSONDecodeError as error:
        raise _fault(path, f"row {number}", f"parameters hold no JSON: {error}") from error


def _fault(path: Path, place: str, reason: str) -> DataError:
    return DataError(f"{path}: {place} holds no pair of a corpus: {reason}")


def _missing(path: Path) -> DataError:
    if path.is_dir():
        return DataError(
            f"the folder {path} has none of {', '.join(FILES[:-1])}, which `cudal1-data corpus export` writes; "
            "name the .parquet or .jsonl file of the corpus"
        )
    return DataError(f"no corpus file {path}; `cudal1-data corpus build` makes one, `bundled` is the package's own")


def _lines_of(path: Path) -> Generator[None, list[Pair], None]:
    # ASCII: programs may contain characters that some readers take for line ends.
    with path.open("w", encoding="ascii") as file:
        while True:
            pairs = yield
            file.writelines(pair.model_dump_json(ensure_ascii=True) + "\n" for pair in pairs)


def _rows_of(path: Path) -> Generator[None, list[Pair], None]:
    pyarrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    schema = _schema(pyarrow)
    with parquet.ParquetWriter(path, schema, compression="zstd") as file:
        while True:
            pairs = yield
            file.write_table(pyarrow.Table.from_pylist([_row(pair) for pair in pairs], schema=schema))


def _row(pair: Pair) -> dict[str, object]:
    row = pair.model_dump(mode="json")
    row["parameters"] = json.dumps(pair.parameters, sort_keys=True)
    row["verified"] = pair.verified
    speedup = pair.best()
    row["speedup"] = None if speedup is None else speedup.point
    latest = pair.latest()
    for name in _MEASURED:
        row[name] = None if latest is None else getattr(latest, name)
    row["reference_tokens"], row["source_tokens"] = token_count(pair.reference), token_count(pair.source)
    return row


def _from_row(row: dict[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in row.items() if key in Pair.model_fields or key in OLD_FIELDS}
    if isinstance(given.get("parameters"), str):
        given["parameters"] = json.loads(given["parameters"])
    return given


def _schema(pyarrow: Any) -> Any:
    text, number, several = pyarrow.string(), pyarrow.float64(), pyarrow.list_
    measured = [(name, number) for name in _MEASURED[:2]] + [(_MEASURED[2], pyarrow.int64())]
    speedup = pyarrow.struct([("baseline", text), ("low", number), ("point", number), ("high", number)])
    figures = pyarrow.struct(
        [
            ("record", text),
            ("status", text),
            ("speedups", several(speedup)),
            *measured,
            *((name, text) for name in ("precision", "device", "machine", "created_at", "protocol")),
        ]
    )
    return pyarrow.schema(
        [
            *((name, text) for name in ("task", "family")),
            ("level", pyarrow.int64()),
            *(
                (name, text)
                for name in ("split", "overlaps", "reference", "reference_sha256", "source", "source_sha256", "backend")
            ),
            ("techniques", several(text)),
            *((name, text) for name in ("template", "parameters", "label")),
            ("evaluations", several(figures)),
            ("verified", pyarrow.bool_()),
            ("speedup", number),
            *measured,
            *((name, pyarrow.int64()) for name in ("reference_tokens", "source_tokens")),
        ]
    )
