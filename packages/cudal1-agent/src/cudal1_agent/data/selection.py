"""Corpus selection: which pairs stage 1 learns from, in which order, and why the others are left out."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from cudal1_data import Device, Task
from cudal1_data.corpus import BUNDLED, Pair, Speedup, corpus_files, load_corpus
from cudal1_data.hashes import digest
from cudal1_env.records import PROTOCOL_VERSION, Status
from pydantic import BaseModel, ConfigDict, Field

from cudal1_agent.data.decontamination import Decontamination
from cudal1_agent.data.examples import Program
from cudal1_agent.errors import CorpusError
from cudal1_agent.settings import SftSettings

T = TypeVar("T")


class Exclusion(StrEnum):
    """Reason why a pair is left out; the first that applies counts."""

    FAILURE = "failure"
    """It is labelled as a failure, or as slow."""
    REFUTED = "refuted"
    """A judge found it incorrect."""
    UNVERIFIED = "unverified"
    """No judge found it correct on the device that the run trains for."""
    NO_GPU = "no_gpu"
    """It was not judged and needs a GPU, but the run trains for the CPU."""
    SPLIT = "split"
    """Its task is marked for validation or test."""
    EVALUATED = "evaluated"
    """The run evaluates on its task, or holds it out."""
    KERNELBENCH = "kernelbench"
    """Its task is one of KernelBench's, or overlaps one."""
    TOO_LONG = "too_long"
    """Prompt and answer would be cut to `max_length`."""
    SURPLUS = "surplus"
    """Its task already has `max_per_task` pairs."""


_ADVICE = {
    Exclusion.FAILURE: "build a corpus with correct programs (cudal1-data corpus build)",
    Exclusion.REFUTED: "read the reasons in their evaluations (cudal1-data corpus stats)",
    Exclusion.UNVERIFIED: "have them judged (cudal1-env verify {path} --device {device} --out records.jsonl, then "
    "cudal1-data corpus merge {path} records.jsonl), or learn them as they are with unverified = true in [sft]",
    Exclusion.NO_GPU: "train on a machine with a GPU (--device cuda), or build PyTorch programs",
    Exclusion.SPLIT: "build a corpus from tasks that are marked for training",
    Exclusion.EVALUATED: "build a corpus from other tasks, or hold out others (--test-suite)",
    Exclusion.KERNELBENCH: "build a corpus from other tasks, or train on test data with --train-on-test",
    Exclusion.TOO_LONG: "raise max_length in the table [sft.trl], and the context of the model",
    Exclusion.SURPLUS: "raise max_per_task in the table [sft]",
}
"""What to do if most pairs are left out for a reason."""


class CorpusNote(BaseModel):
    """The corpus that stage 1 of a run learns from, noted when the run begins."""

    model_config = ConfigDict(frozen=True)

    sha256: str
    """Hash of the file."""
    tasks: tuple[str, ...]
    """Ids of the tasks whose programs it may learn."""
    kernelbench: dict[str, str] = Field(default_factory=dict[str, str])
    """Tasks among them that are KernelBench's or overlap one of its tasks, and which; empty without `train_on_test`."""

    @property
    def trained_on_test(self) -> bool:
        """Whether any of the tasks is test data."""
        return bool(self.kernelbench)


@dataclass(frozen=True)
class CorpusSelection:
    """The pairs of a corpus that stage 1 may learn."""

    path: Path
    """Path in the settings."""
    sha256: str
    """Hash of the file."""
    device: Device
    """Device that the run trains for."""
    tasks: tuple[tuple[Program, ...], ...]
    """Programs by task (a reference at one size), in order of preference."""
    left_out: Mapping[Exclusion, int]
    """Number of pairs left out, by reason."""
    kernelbench: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tasks among them that are KernelBench's or overlap one of its tasks, with that task."""

    def note(self) -> CorpusNote:
        """Return the note for the run directory."""
        ids = sorted({programs[0].task.id for programs in self.tasks})
        return CorpusNote(sha256=self.sha256, tasks=tuple(ids), kernelbench=dict(self.kernelbench))

    def choose(
        self, limit: int, fits: Callable[[Program], bool] = lambda _: True
    ) -> tuple[list[Program], dict[Exclusion, int]]:
        """Return the first `limit` programs of each task that fit, and how many pairs of the corpus are left out.

        Args:
            limit: Maximum number of programs for each task.
            fits: Returns whether a program fits into the model's context; not called for programs beyond `limit`.

        Raises:
            CorpusError: No program is left.
        """
        left = Counter(self.left_out)
        chosen: list[Program] = []
        for programs in self.tasks:
            count = 0
            for program in programs:
                why = Exclusion.SURPLUS if count == limit else None if fits(program) else Exclusion.TOO_LONG
                if why is None:
                    chosen.append(program)
                    count += 1
                else:
                    left[why] += 1
        if not chosen:
            raise CorpusError(_nothing_left(self.path, left, self.device))
        return chosen, {why: left[why] for why in Exclusion if left[why]}


def corpus_sha256(path: Path) -> str:
    """Return the hash of a corpus's file, or of all its files in order.

    Raises:
        CorpusError: There is no file.
    """
    files = corpus_files(path)
    if not files or not files[0].is_file():
        raise CorpusError(
            f"no corpus file {path}; name another (a .parquet or .jsonl file, or a folder of cudal1-data corpus "
            "export), or make one: cudal1-data corpus build FILE.parquet"
        )
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while part := opened.read(1 << 20):
                whole.update(part)
    return whole.hexdigest()


def select_pairs(
    path: Path,
    settings: SftSettings,
    device: Device,
    *,
    held_out: Iterable[Task] = (),
    sizes: Iterable[Task] = (),
    train_on_test: bool = False,
) -> CorpusSelection:
    """Read a corpus and keep the pairs that stage 1 may learn.

    These are the pairs that the latest verdict on the device calls correct; with `settings.unverified`, also
    pairs that are labelled correct and were not judged there. Test data is left out, see `Decontamination`.

    Args:
        path: The corpus.
        settings: Which pairs.
        device: What the run trains for.
        held_out: Tasks that the run never trains on.
        sizes: Training tasks of the run at sizes that it never trains on.
        train_on_test: Keep pairs of KernelBench's tasks and of tasks that overlap them.

    Raises:
        CorpusError: There is no such file, a pair in it does not match its hash, or no pair may be learnt.
        DataError: The file is not a corpus.
    """
    sha256 = corpus_sha256(path)
    decontamination = Decontamination(held_out, sizes)
    left: Counter[Exclusion] = Counter()
    kept: dict[tuple[str, str], list[Pair]] = {}
    marked: dict[str, str] = {}
    for pair in load_corpus(path):
        if digest(pair.source) != pair.source_sha256 or digest(pair.reference) != pair.reference_sha256:
            raise CorpusError(
                f"{path}: a program for {pair.task} does not match its hash, so it was changed; "
                "build the corpus again and merge its records into it"
            )
        known = decontamination.kernelbench(pair)
        why = _not_verified(pair, device, settings) or _contaminated(
            pair, decontamination, known, train_on_test=train_on_test
        )
        if why is not None:
            left[why] += 1
            continue
        kept.setdefault((pair.task, pair.reference_sha256), []).append(pair)
        if (other := known or pair.overlaps) is not None:
            marked[pair.task] = other
    if not kept:
        raise CorpusError(_nothing_left(path, left, device))
    tasks = tuple(_programs(pairs, device) for pairs in kept.values())
    return CorpusSelection(path, sha256, device, tasks, left, marked)


def _not_verified(pair: Pair, device: Device, settings: SftSettings) -> Exclusion | None:
    """Return why a pair does not count as correct on a device, None if it does."""
    if pair.label != "correct":
        return Exclusion.FAILURE
    if (verdict := pair.verdict(device)) is not None:
        return None if verdict == Status.CORRECT else Exclusion.REFUTED
    if pair.refuted:
        return Exclusion.REFUTED
    if not settings.unverified:
        return Exclusion.UNVERIFIED
    return Exclusion.NO_GPU if device == "cpu" and pair.needs_gpu else None


def _contaminated(
    pair: Pair, decontamination: Decontamination, kernelbench: str | None, *, train_on_test: bool
) -> Exclusion | None:
    """Return why a pair must not be trained on, None if it may."""
    if pair.split != "train" and not (train_on_test and kernelbench is not None):
        return Exclusion.SPLIT
    if decontamination.evaluated(pair):
        return Exclusion.EVALUATED
    if (kernelbench is not None or pair.overlaps is not None) and not train_on_test:
        return Exclusion.KERNELBENCH
    return None


def _programs(pairs: Sequence[Pair], device: Device) -> tuple[Program, ...]:
    """Return the programs of a task in order of preference: backends alternate, and templates within a backend.

    Programs of a template come fastest first. Templates and backends are ordered by their fastest program; unmeasured
    programs come last.
    """

    def place(pair: Pair) -> tuple[float, str]:
        speedup = _measured(pair, device)
        return -speedup.low if speedup is not None else math.inf, pair.source_sha256

    first = pairs[0]
    task = Task(id=first.task, source=first.reference, name=first.task, level=max(first.level, 1), origin="corpus")
    backends = _grouped(sorted(pairs, key=place), lambda pair: pair.backend)
    ordered = _interleaved([_interleaved(_grouped(backend, lambda pair: pair.template)) for backend in backends])
    speedups = [_measured(pair, device) for pair in ordered]
    return tuple(
        Program(task, pair.source, pair.techniques, None if speedup is None else speedup.point)
        for pair, speedup in zip(ordered, speedups, strict=True)
    )


def _measured(pair: Pair, device: Device) -> Speedup | None:
    """Return the latest speedup on a device under this version's protocol, None if there is none."""
    found = [
        speedup
        for one in pair.evaluations
        if one.device == device and one.protocol == PROTOCOL_VERSION and (speedup := one.against("eager")) is not None
    ]
    return found[-1] if found else None


def _grouped(items: Iterable[T], name: Callable[[T], str]) -> list[list[T]]:
    lines: dict[str, list[T]] = {}
    for item in items:
        lines.setdefault(name(item), []).append(item)
    return list(lines.values())


def _interleaved(lines: Iterable[Sequence[T]]) -> list[T]:
    return [item for places in zip_longest(*lines) for item in places if item is not None]


def listed(left_out: Mapping[Exclusion, int]) -> str:
    """Return the number of pairs left out by reason, as text.

    >>> listed({Exclusion.REFUTED: 2, Exclusion.TOO_LONG: 1})
    '2 refuted, 1 too long'
    """
    return ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in left_out.items()) or "none"


def _nothing_left(path: Path, left: Mapping[Exclusion, int], device: Device) -> str:
    total = sum(left.values())
    if not total:
        return f"the corpus {path} is empty; fill it with cudal1-data corpus build"
    # Advice on the most frequent reason, and on the reason that comes last in the order of checks.
    reasons = dict.fromkeys([max(left, key=lambda why: left[why]), [why for why in Exclusion if left.get(why)][-1]])
    whole = path == BUNDLED or path.is_dir()
    file = "FILE.parquet" if whole else path
    todo = "; or ".join(_ADVICE[why].format(path=file, device=device) for why in reasons)
    if whole:
        todo = f"write it to a file of your own (cudal1-data corpus export {path} {file}) and use that; or {todo}"
    return (
        f"none of the {total} pairs in {path} can be learnt on {device} (left out: "
        f"{listed({why: left[why] for why in Exclusion if why in left})}); {todo}"
    )
