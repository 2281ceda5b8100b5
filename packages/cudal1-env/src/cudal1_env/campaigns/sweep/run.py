"""The sweep itself: judge the programs that the file lacks, and write a line for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cudal1_data import Task

from cudal1_env.campaigns.sweep.lines import SweepFile, SweepLine
from cudal1_env.campaigns.sweep.programs import Program
from cudal1_env.errors import MachineError, RecordError, TaskError
from cudal1_env.evaluator import EachEvaluator
from cudal1_env.records import Device, Evaluation, Precision


class SweepEvaluator(EachEvaluator, Protocol):
    """The judge that a sweep needs; `cudal1_env.judge.Judge` implements it."""

    def compare(self, task: Task, evaluation: Evaluation) -> Evaluation:
        """Return the record with the speedups over the judge's baselines that it lacks."""
        ...


def sweep(
    judge: SweepEvaluator,
    programs: Sequence[Program],
    file: SweepFile,
    *,
    device: Device,
    precision: Precision,
    notify: Callable[[int, int, SweepLine], None],
    noted: Callable[[str], None],
) -> list[SweepLine]:
    """Judge the programs that the file does not hold.

    Tasks that were too large when the file was written are tried again. Programs in the file get the speedups over the
    judge's baselines that they lack.

    Args:
        judge: The judge.
        programs: All programs of the sweep.
        file: Earlier results; it gets a line for each program that is judged now.
        device: Device on which programs run.
        precision: How narrow intervals must be.
        notify: Called with the number of finished programs, the total, and the latest line.
        noted: Called with the number of programs to judge, and with the reason if a program of the file cannot be
            compared with baselines.

    Returns:
        The lines of all programs, in their order.

    Raises:
        MachineError: The machine broke; verdicts so far are in the file.
    """
    missing = [program for program in programs if _wanted(file.programs.get(program.key))]
    if missing:
        noted(f"programs to judge: {len(missing)}; what compiles does so in groups, before the first verdict of each")

    def done(index: int, outcome: Evaluation | TaskError) -> None:
        program = missing[index]
        name, task_sha256, source_sha256 = program.key
        line = SweepLine(
            task=name,
            level=program.level,
            task_sha256=task_sha256,
            source_sha256=source_sha256,
            published=program.published,
            device=device,
            precision=precision,
            evaluation=outcome if isinstance(outcome, Evaluation) else None,
            refused=str(outcome).removeprefix(f"{name}: ") if isinstance(outcome, TaskError) else None,
        )
        file.add(line)
        notify(_finished(programs, file), len(programs), line)

    try:
        judge.evaluate_each([(program.task, program.source) for program in missing], done, precision=precision)
        for place, program in enumerate(programs, 1):
            if (line := _compared(judge, program, file, noted)) is not None:
                notify(place, len(programs), line)
    except MachineError as error:
        kept = f"{_finished(programs, file)} of {len(programs)} programs are kept in {file.path}"
        raise MachineError(f"{error}; {kept}, and the same command goes on with the rest") from error
    return [_line(program, file) for program in programs]


def joined(programs: Sequence[Program], file: SweepFile) -> list[SweepLine]:
    """Return the file's lines of some programs, in their order, without judging any."""
    return [_line(program, file) for program in programs if program.key in file.programs]


def _line(program: Program, file: SweepFile) -> SweepLine:
    """Return the file's line of a program, with the texts that the file may lack."""
    return file.programs[program.key].with_texts(program.task.source, program.source)


def _wanted(line: SweepLine | None) -> bool:
    """Return whether to judge a program: it is new, or its task was refused for lack of memory.

    Other processes may have held the memory.
    """
    return line is None or line.too_large


def _compared(
    judge: SweepEvaluator, program: Program, file: SweepFile, noted: Callable[[str], None]
) -> SweepLine | None:
    """Add the baselines that a line lacks; return the new line, which is appended after the old one and replaces it."""
    line = _line(program, file)
    if line.evaluation is None:
        return None
    try:
        evaluation = judge.compare(program.task, line.evaluation)
    except (RecordError, TaskError) as error:
        noted(f"{line.task}: no baselines: {error}")
        return None
    if evaluation is line.evaluation:
        return None
    line = line.model_copy(update={"evaluation": evaluation})
    file.add(line)
    return line


def _finished(programs: Sequence[Program], file: SweepFile) -> int:
    return sum(program.key in file.programs for program in programs)
