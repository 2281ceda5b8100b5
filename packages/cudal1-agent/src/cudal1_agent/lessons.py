"""Which pairs of a corpus stage 1 learns from, in what order of preference, and why the others are left out."""

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
from cudal1_data.corpus import BUNDLED, Pair, Speedup, corpus_file, load_corpus
from cudal1_data.corpus.model import NOISE
from cudal1_data.hashes import digest
from cudal1_env.records import PROTOCOL_VERSION, Status

from cudal1_agent.corpus import Program
from cudal1_agent.errors import CorpusError
from cudal1_agent.leakage import Leaks
from cudal1_agent.rundir import CorpusNote
from cudal1_agent.settings import SftSettings

T = TypeVar("T")


class Why(StrEnum):
    """Why a pair is not learnt; the first that holds counts."""

    FAILURE = "failure"
    """It is labelled as a failure, or as slow."""
    REFUTED = "refuted"
    """A judge called it something else than right."""
    UNVERIFIED = "unverified"
    """No judge called it right on the device that the run trains for."""
    NO_GPU = "no_gpu"
    """Nobody judged it, and it is written for a GPU, but the run trains for the CPU."""
    SPLIT = "split"
    """Its task is marked for validation or test."""
    EVALUATED = "evaluated"
    """The run evaluates on its task, or holds it out."""
    KERNELBENCH = "kernelbench"
    """Its task is one of KernelBench's, or asks for the same as one."""
    TOO_LONG = "too_long"
    """Prompt and answer would be cut to `max_length`."""
    SURPLUS = "surplus"
    """Its task has as many pairs without it as are wanted."""


_ADVICE = {
    Why.FAILURE: "build a corpus with right programs (cudal1-data corpus build)",
    Why.REFUTED: "what was wrong stands in its evaluations (cudal1-data corpus stats)",
    Why.UNVERIFIED: "have them judged (cudal1-env verify {path} --device {device} --out records.jsonl, then "
    "cudal1-data corpus merge {path} records.jsonl), or learn them as they are with unverified = true in [sft]",
    Why.NO_GPU: "train on a machine with a GPU (--device cuda), or build PyTorch programs",
    Why.SPLIT: "build a corpus from tasks that are marked for training",
    Why.EVALUATED: "build a corpus from other tasks, or hold out others (--test-suite)",
    Why.KERNELBENCH: "build a corpus from other tasks, or train on test data with --train-on-test",
    Why.TOO_LONG: "raise max_length in the table [sft.trl], and the context of the model",
    Why.SURPLUS: "raise most_per_task in the table [sft]",
}
"""What to do where most are left out for a reason."""


@dataclass(frozen=True)
class Lessons:
    """The pairs of a corpus that may be learnt."""

    path: Path
    """What the settings name."""
    sha256: str
    """Hash of the file."""
    device: Device
    """For which programs are learnt."""
    tasks: tuple[tuple[Program, ...], ...]
    """Programs by task (a reference at one size), each task's in the order in which they are preferred."""
    left_out: Mapping[Why, int]
    """How many pairs are not among them, by reason."""
    kernelbench: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tasks among them that are KernelBench's or ask for the same, with its task."""

    def note(self) -> CorpusNote:
        """Return what a run directory keeps of this."""
        ids = sorted({programs[0].task.id for programs in self.tasks})
        return CorpusNote(sha256=self.sha256, tasks=tuple(ids), kernelbench=dict(self.kernelbench))

    def choose(
        self, most: int, fits: Callable[[Program], bool] = lambda _: True
    ) -> tuple[list[Program], dict[Why, int]]:
        """Return the first so many programs of each task that fit, and how many pairs of the corpus are left out.

        Args:
            most: Programs for each task, at most.
            fits: Whether a program goes into the model's context. Not asked about those beyond `most`.

        Raises:
            CorpusError: None is left.
        """
        left = Counter(self.left_out)
        chosen: list[Program] = []
        for programs in self.tasks:
            count = 0
            for program in programs:
                why = Why.SURPLUS if count == most else None if fits(program) else Why.TOO_LONG
                if why is None:
                    chosen.append(program)
                    count += 1
                else:
                    left[why] += 1
        if not chosen:
            raise CorpusError(_nothing_left(self.path, left, self.device))
        return chosen, {why: left[why] for why in Why if left[why]}


def corpus_sha256(path: Path) -> str:
    """Return the hash of a corpus's file.

    Raises:
        CorpusError: There is none.
    """
    file = corpus_file(path)
    if not file.is_file():
        raise CorpusError(
            f"expected a corpus (a .parquet or .jsonl file, or a folder that cudal1-data corpus export wrote), found "
            f"no file {file}; name another, or make one: cudal1-data corpus build {file}"
        )
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def load_lessons(
    path: Path,
    settings: SftSettings,
    device: Device,
    *,
    held_out: Iterable[Task] = (),
    sizes: Iterable[Task] = (),
    train_on_test: bool = False,
) -> Lessons:
    """Read a corpus and keep what may be learnt.

    Those are pairs that a judge called right on the device and never wrong; with `settings.unverified` also those that
    are labelled right and were not judged there. Test data is left out, see `Leaks`.

    Args:
        path: The corpus.
        settings: Which pairs.
        device: What the run trains for.
        held_out: Tasks that the run never trains on.
        sizes: Training tasks of the run at sizes that it never trains on.
        train_on_test: Keep pairs of KernelBench's tasks and of those that ask for the same.

    Raises:
        CorpusError: There is no such file, a pair in it was changed by hand, or none of them may be learnt.
        DataError: The file is no corpus.
    """
    sha256 = corpus_sha256(path)
    leaks = Leaks(held_out, sizes)
    left: Counter[Why] = Counter()
    kept: dict[tuple[str, str], list[Pair]] = {}
    marked: dict[str, str] = {}
    for pair in load_corpus(path):
        if digest(pair.source) != pair.source_sha256 or digest(pair.reference) != pair.reference_sha256:
            raise CorpusError(
                f"{path}: expected pairs whose hashes are those of their programs, got a program for {pair.task} "
                "that was changed; build the corpus again and merge its records into it"
            )
        known = leaks.kernelbench(pair)
        why = _unproven(pair, device, settings) or _leaking(pair, leaks, known, train_on_test=train_on_test)
        if why is not None:
            left[why] += 1
            continue
        kept.setdefault((pair.task, pair.reference_sha256), []).append(pair)
        if (other := known or pair.overlaps) is not None:
            marked[pair.task] = other
    if not kept:
        raise CorpusError(_nothing_left(path, left, device))
    tasks = tuple(_programs(pairs, device) for pairs in kept.values())
    return Lessons(path, sha256, device, tasks, left, marked)


def _unproven(pair: Pair, device: Device, settings: SftSettings) -> Why | None:
    """Return why a pair does not count as right on a device."""
    if pair.label != "right":
        return Why.FAILURE
    here = {one.status for one in pair.evaluations if one.device == device} - {NOISE}
    if here:
        return None if here == {Status.CORRECT} else Why.REFUTED
    if pair.refuted:
        return Why.REFUTED
    if not settings.unverified:
        return Why.UNVERIFIED
    return Why.NO_GPU if device == "cpu" and pair.needs_gpu else None


def _leaking(pair: Pair, leaks: Leaks, kernelbench: str | None, *, train_on_test: bool) -> Why | None:
    """Return why a pair must not be trained on."""
    if pair.split != "train" and not (train_on_test and kernelbench is not None):
        return Why.SPLIT
    if leaks.evaluated(pair):
        return Why.EVALUATED
    if (kernelbench is not None or pair.overlaps is not None) and not train_on_test:
        return Why.KERNELBENCH
    return None


def _programs(pairs: Sequence[Pair], device: Device) -> tuple[Program, ...]:
    """Return the programs of a task as they are preferred: ways of writing take turns, within a way its templates.

    Those of a template come fastest first, and so do templates and ways by their fastest; what was not measured comes
    last.
    """

    def place(pair: Pair) -> tuple[float, str]:
        speedup = _measured(pair, device)
        return -speedup.low if speedup is not None else math.inf, pair.source_sha256

    first = pairs[0]
    task = Task(id=first.task, source=first.reference, name=first.task, level=max(first.level, 1), origin="corpus")
    ways = _lines(sorted(pairs, key=place), lambda pair: pair.writing)
    ordered = _by_turns([_by_turns(_lines(way, lambda pair: pair.template)) for way in ways])
    speedups = [_measured(pair, device) for pair in ordered]
    return tuple(
        Program(task, pair.source, pair.techniques, None if speedup is None else speedup.point)
        for pair, speedup in zip(ordered, speedups, strict=True)
    )


def _measured(pair: Pair, device: Device) -> Speedup | None:
    """Return the latest speedup on a device that compares with what this judge measures."""
    found = [
        speedup
        for one in pair.evaluations
        if one.device == device and one.protocol == PROTOCOL_VERSION and (speedup := one.against("eager")) is not None
    ]
    return found[-1] if found else None


def _lines(items: Iterable[T], name: Callable[[T], str]) -> list[list[T]]:
    lines: dict[str, list[T]] = {}
    for item in items:
        lines.setdefault(name(item), []).append(item)
    return list(lines.values())


def _by_turns(lines: Iterable[Sequence[T]]) -> list[T]:
    return [item for turn in zip_longest(*lines) for item in turn if item is not None]


def listed(left_out: Mapping[Why, int]) -> str:
    """Return how many pairs were left out why, for people.

    >>> listed({Why.REFUTED: 2, Why.TOO_LONG: 1})
    '2 refuted, 1 too long'
    """
    return ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in left_out.items()) or "none"


def _nothing_left(path: Path, left: Mapping[Why, int], device: Device) -> str:
    total = sum(left.values())
    if not total:
        return f"expected pairs to learn from in {path}, found an empty corpus; fill it with cudal1-data corpus build"
    # Help with what keeps most of them out, and with what keeps those out that came furthest.
    reasons = dict.fromkeys([max(left, key=lambda why: left[why]), [why for why in Why if left.get(why)][-1]])
    todo = "; or ".join(_ADVICE[why].format(path=corpus_file(path), device=device) for why in reasons)
    if path == BUNDLED:
        todo = f"write it to a folder of your own (cudal1-data corpus export {path} FOLDER) and use that; or {todo}"
    return (
        f"expected pairs to learn from on {device} in {path}, found none among its {total} (left out: "
        f"{listed({why: left[why] for why in Why if why in left})}); {todo}"
    )
