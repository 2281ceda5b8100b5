"""The command `cudal1-data`: list, show, export, compare and trace tasks; tag programs; maintain a corpus of them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from cudal1_data.commandline import finished, parsed
from cudal1_data.commands.broken import report_broken
from cudal1_data.commands.corpus import CorpusCommand
from cudal1_data.commands.overlaps import Overlaps, Trace
from cudal1_data.commands.tags import TagCommand
from cudal1_data.errors import DataError
from cudal1_data.progress import on_stderr

if TYPE_CHECKING:
    from cudal1_data.suite import Suite

Tags = Annotated[TagCommand, tyro.conf.subcommand(name="tags")]
CorpusCommands = Annotated[CorpusCommand, tyro.conf.subcommand(name="corpus"), tyro.conf.OmitSubcommandPrefixes]


@dataclass(frozen=True)
class List:
    """List the tasks of a suite.

    Example: cudal1-data list starter:level1 --json
    """

    spec: Annotated[Positional[str], tyro.conf.arg(metavar="[SUITE]")] = "starter"
    """starter, kernelbench, generated (`generated:softmax+scan?n=20&seed=7`), a folder, or a .jsonl, .parquet or .py
    file; append `:level1` to select."""
    scale: int = 1
    """Divide batch sizes by this; tasks without a batch are left out."""
    memory_gib: float | None = None
    """Divide the batch sizes of tasks whose inputs, state and outputs take more than this (references are traced)."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON array."""

    def run(self) -> None:
        """Print the list."""
        from cudal1_data.sources import load_suite

        suite = load_suite(self.spec, scale=self.scale, memory_bytes=_bytes(self.memory_gib))
        report_broken(suite)
        if self.json_:
            print(json.dumps([_summary(suite, task_id) for task_id in suite.ids], indent=1))
            return
        width = max((len(task_id) for task_id in suite.ids), default=0)
        for task in suite:
            kind = task.category or "-"
            print(f"{task.id:{width}}  level {task.level}  {task.split:10}  {kind:22}  {task.name}")


@dataclass(frozen=True)
class Show:
    """Print a task's reference program.

    Example: cudal1-data show starter/diag_matmul --variants
    """

    task: Annotated[Positional[str], tyro.conf.arg(metavar="TASK")]
    """Task id (starter/diag_matmul), SUITE:TASK, or a task file."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device whose default size to show."""
    size: str | None = None
    """Another size, e.g. N=384,M=3000."""
    variants: bool = False
    """Also print the task's variants."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object: the task's fields, its program and its variants."""

    def run(self) -> None:
        """Print the program and, if requested, its variants."""
        from cudal1_data.sizes import parse_size
        from cudal1_data.sources import load_task

        task = load_task(self.task, device=self.device)
        if self.size is not None:
            task = task.at(parse_size(self.size))
        if self.json_:
            print(task.model_dump_json())
            return
        print(f"# {task.id}: {task.name} (level {task.level}, {task.split})", file=sys.stderr)
        print(task.source, end="" if task.source.endswith("\n") else "\n")
        if self.variants:
            for variant in task.variants:
                facts = ", ".join((*variant.techniques, *(f"needs {need}" for need in variant.needs)))
                print(f"\n# variant {variant.name} ({facts})\n{variant.source}", end="")


@dataclass(frozen=True)
class Export:
    """Write the tasks of a suite to a file or folder.

    Example: cudal1-data export 'generated?n=200&seed=7' tasks.parquet
    """

    spec: Annotated[Positional[str], tyro.conf.arg(metavar="SUITE")]
    """Suite to write, as for `list`."""
    out: Annotated[Positional[Path], tyro.conf.arg(metavar="OUT")]
    """A .jsonl or .parquet file with KernelBench's columns, or a new folder in KernelBench's layout. In a folder,
    split, tags and sizes in ids are lost; a file keeps them."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device whose default sizes to write."""
    scale: int = 1
    """Divide batch sizes by this; tasks without a batch are left out."""
    memory_gib: float | None = None
    """Divide the batch sizes of tasks whose inputs, state and outputs take more than this (references are traced)."""
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""

    def run(self) -> None:
        """Write the tasks; print their number and the path."""
        from cudal1_data.sources import load_suite
        from cudal1_data.sources.export import export

        suite = load_suite(self.spec, device=self.device, scale=self.scale, memory_bytes=_bytes(self.memory_gib))
        report_broken(suite)
        export(suite, self.out)
        if self.json_:
            left_out = [str(entry.error) for entry in suite.broken]
            print(json.dumps({"tasks": len(suite), "out": str(self.out), "left_out": left_out}))
        print(f"{len(suite)} tasks written to {self.out}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command-line arguments; None for those in `sys.argv`.

    Returns:
        An exit code of `cudal1_data.commandline`.
    """
    command: List | Show | Export | Overlaps | Trace | Tags | CorpusCommands = parsed(
        lambda: tyro.cli(
            List | Show | Export | Overlaps | Trace | Tags | CorpusCommands,  # pyright: ignore[reportArgumentType]
            prog="cudal1-data",
            description=__doc__,
            args=arguments,
        )
    )
    with on_stderr():
        return finished("cudal1-data", command, (DataError, OSError))


def _summary(suite: Suite, task_id: str) -> dict[str, Any]:
    task = suite[task_id]
    facts = task.model_dump(mode="json", exclude={"source", "variants"})
    return facts | {
        "variants": [variant.name for variant in task.variants],
        "programs": sorted(suite.programs.get(task_id, {})),
    }


def _bytes(gibibytes: float | None) -> int | None:
    if gibibytes is None:
        return None
    if not 0 < gibibytes < math.inf:
        raise DataError(f"invalid --memory-gib {gibibytes}: give a memory above 0 GiB (80 for a large GPU)")
    return int(gibibytes * 2**30)
