"""Rows of parquet files. Only this module handles pyarrow's slow import (0.2 s) and missing types."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cudal1_data.errors import BrokenTaskError


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a parquet file.

    Raises:
        BrokenTaskError: The file is not a parquet file.
        OSError: The file cannot be read.
    """
    return list(each_row(path))


def each_row(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file, with at most 1,000 in memory.

    Raises:
        BrokenTaskError: The file is not a parquet file.
        OSError: The file cannot be read.
    """
    pyarrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise BrokenTaskError(f"{path}: not a parquet file: {error}") from error


def write_rows(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Write rows with the same columns to a parquet file.

    Raises:
        OSError: The file cannot be written.
    """
    pyarrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path)
