"""`cudal1-data corpus`: build, count, merge and export the corpus of variants."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional

from cudal1_data.commandline import STATED_DEFAULT
from cudal1_data.commands.broken import report_broken, report_left_out
from cudal1_data.errors import DataError
from cudal1_data.progress import paced

if TYPE_CHECKING:
    from cudal1_data.corpus.model import Key, Pair
    from cudal1_data.corpus.store import Corpus
    from cudal1_data.task import Task

_KERNELS = ("triton", "cuda-nvrtc", "cuda-load-inline")
"""Backends whose programs need a reference that the templates can read."""


@dataclass(frozen=True)
class Build:
    """Apply every template, with every choice of its parameters, to tasks; the resulting pairs are not verified yet.

    Example: cudal1-data corpus build pairs.parquet starter
    """

    out: Annotated[Positional[Path], tyro.conf.arg(metavar="OUT")]
    """A .parquet or .jsonl file. An existing file gains missing pairs and keeps its evaluations. Its programs from
    records get the family, level, split and overlap of the built tasks."""
    suites: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="[SUITE ...]")] = (
        "starter",
        "generated?n=160",
    )
    """Suites, as for `list`."""
    device: Literal["cpu", "cuda"] = "cuda"
    """Device whose default sizes to use."""
    per_task: Annotated[int | None, STATED_DEFAULT] = None
    """Maximum number of correct programs for each task (default: all); backends alternate."""
    failures: int = 2
    """Number of programs with a fault for each task."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""

    def run(self) -> None:
        """Build and save."""
        from cudal1_data.corpus.store import Corpus, check_ending, load_corpus
        from cudal1_data.sources import load_suite

        check_ending(self.out)
        for name, value, least in (("--per-task", self.per_task, 1), ("--failures", self.failures, 0)):
            if value is not None and value < least:
                raise DataError(f"{name} is {value}; give at least {least}")
        start = time.monotonic()
        known = load_corpus(self.out) if self.out.exists() else Corpus()
        tasks: dict[tuple[str, str], Task] = {}
        for spec in self.suites:
            suite = load_suite(spec, device=self.device)
            report_broken(suite)
            _refuse_kernelbench(suite)
            tasks |= {(task.id, task.source): task for task in suite}
        made = self._stream(tasks) if not len(known) else self._add(tasks, known)
        pairs, elapsed_s = made + len(known), time.monotonic() - start
        if self.json_:
            counts = {"pairs_made": made, "pairs": pairs, "elapsed_s": round(elapsed_s, 3), "out": str(self.out)}
            print(json.dumps(counts))
        print(f"{made} pairs made in {elapsed_s:.1f} s, {pairs} in {self.out}", file=sys.stderr)

    def _stream(self, tasks: Mapping[tuple[str, str], Task]) -> int:
        """Write a new corpus in its order, task by task; return the number of pairs."""
        from cudal1_data.corpus.store import Corpus, CorpusWriter

        seen: set[Key] = set()
        with CorpusWriter(self.out) as file:
            for pairs in self._pairs(tasks):
                new = [pair for pair in Corpus(pairs) if pair.key not in seen]
                seen |= {pair.key for pair in new}
                file.write(new)
        return len(seen)

    def _add(self, tasks: Mapping[tuple[str, str], Task], known: Corpus) -> int:
        """Add missing pairs to a corpus; return their number."""
        whole = type(known)(known)
        newest: dict[Key, Pair] = {}
        for pairs in self._pairs(tasks):
            for pair in pairs:
                whole.add(pair)
                newest[pair.task, pair.reference_sha256] = pair
        whole.settle(newest.values())
        whole.save(self.out)
        return len(whole) - len(known)

    def _pairs(self, tasks: Mapping[tuple[str, str], Task]) -> Iterator[list[Pair]]:
        """Yield the pairs of each task id, in the order of ids."""
        from cudal1_data.corpus.build import build
        from cudal1_data.kernelgen.make import why_unread

        unread: list[str] = []
        groups = [list(group) for _, group in itertools.groupby(sorted(tasks), key=lambda key: key[0])]
        for group in paced(groups, len(groups), "tasks built"):
            pairs = list(build([tasks[key] for key in group], per_task=self.per_task, failures=self.failures))
            if not any(pair.backend in _KERNELS for pair in pairs):
                reasons = ((task_id, why_unread(source)) for task_id, source in group)
                unread += [f"kernels for {task_id}: {reason}" for task_id, reason in reasons if reason]
            yield pairs
        report_left_out(unread)


def _refuse_kernelbench(tasks: Iterable[Task]) -> None:
    """Reject KernelBench's references: programs for them never enter a corpus, because others report results on them.

    Raises:
        DataError: A task is one of KernelBench's, by its id or its reference's text.
    """
    from cudal1_data.sources.kernelbench import is_kernelbench

    found = [task.id for task in tasks if is_kernelbench(task.id, task.source)]
    if found:
        raise DataError(
            f"{found[0]} is a reference of KernelBench{f', and so are {len(found) - 1} more' if found[1:] else ''}: "
            "programs for these never enter a training corpus; name suites without them"
        )


@dataclass(frozen=True)
class StatsCommand:
    """Count a corpus: labels, backends, techniques, speedups.

    Example: cudal1-data corpus stats bundled
    """

    corpus: Annotated[Positional[Path], tyro.conf.arg(metavar="CORPUS")]
    """A .parquet or .jsonl file of pairs, or `bundled`."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""

    def run(self) -> None:
        """Count and print."""
        from cudal1_data.corpus.stats import stats
        from cudal1_data.corpus.store import load_corpus

        found = stats(load_corpus(self.corpus))
        print(found.model_dump_json() if self.json_ else found.text())


@dataclass(frozen=True)
class Merge:
    """Add the records of a judge to a corpus. Repeating it changes nothing.

    Example: cudal1-data corpus merge pairs.parquet records.jsonl
    """

    corpus: Annotated[Positional[Path], tyro.conf.arg(metavar="CORPUS")]
    """A .parquet or .jsonl file of pairs; created if missing."""
    records: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RECORDS ...")]
    """Files of records from `cudal1-env verify`, `sweep` or `evaluate`."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""

    def run(self) -> None:
        """Merge and save."""
        from cudal1_data.corpus.merge import merge
        from cudal1_data.corpus.store import Corpus, check_ending, load_corpus

        if not self.records:
            raise DataError("no records to merge; name a file from `cudal1-env verify`, `sweep` or `evaluate`")
        check_ending(self.corpus)
        corpus = load_corpus(self.corpus) if self.corpus.exists() else Corpus()
        files: list[dict[str, object]] = []
        for path in self.records:
            done = merge(corpus, path)
            counts = {"added": done.added, "new_pairs": done.new_pairs, "known": done.known}
            files.append({"file": str(path), **counts, "left_out": list(done.left_out)})
            report_left_out(done.left_out)
            print(
                f"{path}: {done.added} records added, {done.new_pairs} programs that the corpus lacked, "
                f"{done.known} known",
                file=sys.stderr,
            )
        corpus.save(self.corpus)
        if self.json_:
            print(json.dumps({"pairs": len(corpus), "files": files}))


@dataclass(frozen=True)
class ExportCorpus:
    """Write a corpus as a dataset: a folder with a Parquet file for each split and a card, or one file.

    Example: cudal1-data corpus export bundled dataset --verified
    """

    corpus: Annotated[Positional[Path], tyro.conf.arg(metavar="CORPUS")]
    """A .parquet or .jsonl file of pairs, or `bundled`."""
    out: Annotated[Positional[Path], tyro.conf.arg(metavar="OUT")]
    """A .parquet or .jsonl file, or a new or empty folder."""
    verified: bool = False
    """Export only pairs that a judge on a GPU found correct."""
    confirmed: bool = False
    """Export only pairs whose label a judge confirmed: the correct ones of `--verified`, and failures."""
    per_skeleton: int | None = None
    """Maximum number of pairs of a reference whose programs differ in numbers only: newest protocol, then fastest."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""

    def run(self) -> None:
        """Write the dataset."""
        from cudal1_data.corpus.build import limited
        from cudal1_data.corpus.card import card
        from cudal1_data.corpus.store import SPLITS, Corpus, load_corpus
        from cudal1_data.sources.export import names_folder

        whole = load_corpus(self.corpus)
        kept = Corpus(
            pair for pair in whole if (pair.verified or not self.verified) and (pair.confirmed or not self.confirmed)
        )
        if not len(kept):
            wanted = "pairs that a judge on a GPU found correct" if self.verified else "pairs"
            wanted += " whose label a judge confirmed" if self.confirmed else ""
            raise DataError(
                f"none of the {len(whole)} pairs in {self.corpus} is among {wanted}; "
                "cudal1-env verify judges them, and cudal1-data corpus merge takes its records"
            )
        if self.per_skeleton is not None:
            kept = limited(kept, self.per_skeleton)
        if not names_folder(self.out):
            kept.save(self.out)
        else:
            for split in SPLITS:
                some = Corpus(pair for pair in kept if pair.split == split)
                if len(some):
                    some.save(self.out / f"{split}.parquet")
            (self.out / "README.md").write_text(card(kept), encoding="utf-8")
        if self.json_:
            print(json.dumps({"pairs": len(kept), "of": len(whole), "out": str(self.out)}))
        print(f"{len(kept)} of {len(whole)} pairs written to {self.out}", file=sys.stderr)


@dataclass(frozen=True)
class Verify:
    """Judge pairs: the same as `cudal1-env verify`, which has more options.

    Example: cudal1-data corpus verify pairs.parquet --limit 20
    """

    corpus: Annotated[Positional[Path], tyro.conf.arg(metavar="CORPUS")]
    """A .parquet or .jsonl file of pairs."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device on which programs run."""
    limit: int | None = None
    """Maximum number of pairs."""
    out: Path = Path("records.jsonl")
    """File for the judge's records; `merge` reads it."""

    def run(self) -> None:
        """Run `cudal1-env verify` as a process, because this package may not import cudal1_env."""
        options = ["--device", self.device, "--out", str(self.out)]
        options += [] if self.limit is None else ["--limit", str(self.limit)]
        command = ["cudal1-env", "verify", str(self.corpus), *options]
        program = Path(sys.executable).with_name(command[0])
        if not program.is_file():
            raise DataError(f"no program {program}: install cudal1-env in the environment of {sys.executable}")
        if code := subprocess.run([program, *command[1:]], check=False).returncode:
            raise DataError(f"`{' '.join(command)}` failed with exit code {code}; see its output above")


@dataclass(frozen=True)
class CorpusCommand:
    """Variants of tasks and their verdicts: build, verify, merge, stats, export.

    Example: cudal1-data corpus stats bundled
    """

    command: (
        Annotated[Build, tyro.conf.subcommand(name="build")]
        | Annotated[Verify, tyro.conf.subcommand(name="verify")]
        | Annotated[StatsCommand, tyro.conf.subcommand(name="stats")]
        | Annotated[Merge, tyro.conf.subcommand(name="merge")]
        | Annotated[ExportCorpus, tyro.conf.subcommand(name="export")]
    )
    """Subcommand."""

    @property
    def json_(self) -> bool:
        """Whether to print JSON."""
        return getattr(self.command, "json_", False)

    def run(self) -> None:
        """Run the subcommand."""
        self.command.run()
