"""Reading records from files."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pydantic import BaseModel, ValidationError

from cudal1_env.errors import RecordError
from cudal1_env.records.evaluation import Evaluation


class _OfSweep(BaseModel):
    """A line of a sweep, as far as it is read here."""

    evaluation: Evaluation


def read_record(path: Path) -> Evaluation:
    """Read a record, or the one in a sweep's line: a JSON file, or the last line of a file of JSON lines.

    Raises:
        RecordError: The file holds no record.
    """
    try:
        # No splitlines: a program's text may hold characters that splitlines takes for the end of a line.
        lines = path.read_text(encoding="utf-8").strip().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise RecordError(f"cannot read the record {path}: {reason}; name a file of `evaluate --json`") from error
    for text in ("\n".join(lines), lines[-1]):
        with contextlib.suppress(ValidationError):
            return Evaluation.model_validate_json(text)
        with contextlib.suppress(ValidationError):
            return _OfSweep.model_validate_json(text).evaluation
    raise RecordError(f"{path} holds no evaluation; save the JSON that `cudal1-env evaluate --json` prints last")
