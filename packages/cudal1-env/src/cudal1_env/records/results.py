"""A results file: one JSON line for each result, on disk as soon as it is known, so that a campaign can resume."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from cudal1_env.errors import RecordError, writing

Line = TypeVar("Line")
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class Form(Generic[Line]):
    """Format of the lines of a results file."""

    name: str
    """Owner of the file, as messages name it: `a sweep`."""
    head: bytes
    """Text with which every line begins; it distinguishes a truncated last line from other text."""
    read: Callable[[bytes], Line | None]
    """Read a line; return None for a line that holds no result, such as a summary. Raise ValueError for other text."""
    write: Callable[[Line], bytes]
    """Write a line, without its line end."""
    conditions: Callable[[Line], tuple[str, ...]] = lambda line: ()
    """Conditions under which a line was made: device, protocol, precision."""
    document: Callable[[bytes], list[Line] | None] = lambda data: None
    """Read a whole file of an older published format; return None for a file of lines."""


def form_of(
    model: type[_Model], name: str, *, head: str, conditions: Callable[[_Model], tuple[str, ...]]
) -> Form[_Model]:
    """Return the format of lines that are models."""
    # ASCII, because a program's text may hold characters that some readers take for the end of a line.
    return Form(
        name,
        head.encode(),
        model.model_validate_json,
        lambda line: line.model_dump_json(ensure_ascii=True).encode(),
        conditions,
    )


class ResultsFile(Generic[Line]):
    """Results on disk; known results are not computed again.

    Args:
        path: The file; it and its folder are made with the first line. None keeps the lines in memory.
        form: Format of its lines.
        asked: Conditions of this campaign; None accepts lines made under any conditions.
        known: Files whose results count as known. They are not copied to the file.
        join: Files whose lines are copied to the file if it lacks them.

    Raises:
        RecordError: A file holds something else, or results made under other conditions.
    """

    def __init__(
        self,
        path: Path | None,
        form: Form[Line],
        asked: tuple[str, ...] | None = None,
        *,
        known: Sequence[Path] = (),
        join: Sequence[Path] = (),
    ) -> None:
        self.path = path
        self.form = form
        self._others = [one for other in known for one in read_results(other, form, asked)]
        joined = [one for part in join for one in read_results(part, form, asked)]
        self.lines: list[Line] = _resumed(path, form, asked) if path is not None and path.exists() else []
        """Lines of the file, in its order."""
        held = {form.write(one) for one in self.lines}
        for one in joined:
            if (text := form.write(one)) not in held:
                held.add(text)
                self.add(one)

    @property
    def known(self) -> list[Line]:
        """All known results: lines of `known` files, then those of the file."""
        return [*self._others, *self.lines]

    def add(self, line: Line) -> Line:
        """Append a line and return it after it has reached the disk.

        Raises:
            MachineError: It cannot be written, as on a full disk.
        """
        if self.path is not None:
            with writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab") as file:
                    file.write(self.form.write(line) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
        self.lines.append(line)
        return line


def read_results(path: Path, form: Form[Line], asked: tuple[str, ...] | None = None) -> list[Line]:
    """Read the results of a file without changing it.

    Raises:
        RecordError: The file cannot be read, or holds something else.
    """
    data = _data(path)
    document = form.document(data)
    parsed = list(_parsed(path, data, form, "give another file")) if document is None else []
    lines = [line for line, _ in parsed if line is not None] if document is None else document
    _check(path, lines, form, asked, "give another file")
    return lines


def _resumed(path: Path, form: Form[Line], asked: tuple[str, ...] | None) -> list[Line]:
    """Read the file of a campaign that resumes after its last line.

    Remove anything at its end that is not a result: a line that a kill truncated, and a summary. Convert an older
    document to lines.
    """
    # Change nothing before every line is known to be a result.
    data = _data(path)
    document = form.document(data)
    if document is not None:
        _check(path, document, form, asked, _OTHER_OUT)
        aside = path.with_name(f"{path.name}.new")
        aside.write_bytes(b"".join(form.write(line) + b"\n" for line in document))
        aside.rename(path)
        return document
    parsed = list(_parsed(path, data, form, _OTHER_OUT))
    lines = [line for line, _ in parsed if line is not None]
    _check(path, lines, form, asked, _OTHER_OUT)
    while parsed and parsed[-1][0] is None:
        parsed.pop()
    size = parsed[-1][1] if parsed else 0
    if size < len(data):
        os.truncate(path, size)
    if size and data[size - 1 : size] != b"\n":  # the last line lacks only its line end
        with path.open("ab") as file:
            file.write(b"\n")
    return lines


_OTHER_OUT = "give another --out"


def _data(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error


def _parsed(path: Path, data: bytes, form: Form[Line], fix: str) -> Iterator[tuple[Line | None, int]]:
    """Yield each line of a file and the position of its end; skip a last line that a kill truncated."""
    end = 0
    for number, text in enumerate(io.BytesIO(data), start=1):
        if not text.endswith(b"\n") and _is_cut_off(text, form.head):
            return
        end += len(text)
        try:
            yield form.read(text.rstrip(b"\n")), end
        except ValueError as error:
            fault = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise RecordError(
                f"{path} is not the file of {form.name}: line {number} is not one of its lines ({fault}); {fix}"
            ) from error


def _check(path: Path, lines: Sequence[Line], form: Form[Line], asked: tuple[str, ...] | None, fix: str) -> None:
    """Check that results were made under the requested conditions."""
    for line in lines if asked is not None else ():
        found = form.conditions(line)
        if found != asked:
            raise RecordError(f"{path} holds results of {', '.join(found)}, not of {', '.join(asked or ())}; {fix}")


def _is_cut_off(text: bytes, head: bytes) -> bool:
    """Return whether a text begins like a line and lacks its end."""
    if not text.startswith(head[: len(text)]):
        return False
    try:
        json.loads(text)
    except ValueError:
        return True
    return False
