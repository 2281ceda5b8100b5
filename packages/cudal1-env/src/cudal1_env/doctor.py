"""What this machine offers to the judge, and what to install for the rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from cudal1_data import Task, load_suite
from pydantic import BaseModel, ConfigDict

from cudal1_env.calibration import load_spread, save_spread, spread_path
from cudal1_env.errors import MachineError
from cudal1_env.judge.cpu import CpuDevice
from cudal1_env.judge.lease import choose_core
from cudal1_env.records import Machine
from cudal1_env.sandbox import available_layers, successful_attempts
from cudal1_env.stats import DEFAULT_SPREAD, Launch, Spread, calibrate_spread

_CALIBRATION_TASKS = 6
_CALIBRATION_LAUNCHES = 4


class Findings(BaseModel):
    """What `doctor` found."""

    model_config = ConfigDict(frozen=True)

    machine: Machine
    """Host, CPU, versions."""
    layers: dict[str, str | None]
    """Every sandbox layer: None where it is available, else the reason."""
    attempts: dict[str, str]
    """What a probe could do from inside the sandbox although it must not; empty on a sound machine."""
    tools: dict[str, str | None]
    """Compilers by name: path, or None."""
    spread: Spread
    """Launch-to-launch spread of this machine."""
    calibrated: bool
    """Whether the spread was measured here (else the default is used)."""

    @property
    def missing_layers(self) -> list[str]:
        """Layers that this machine does not offer."""
        return [name for name, reason in self.layers.items() if reason is not None]

    def text(self) -> str:
        """Return the findings for people."""
        lines = [f"machine   {self.machine.name}, {self.machine.cores} cores, {self.machine.kernel}"]
        lines.append(f"versions  Python {self.machine.python}, torch {self.machine.torch}")
        core = "shared with the judge (timing is coarse: use a machine with two cores)"
        lines.append(f"arms      {core if self.machine.core is None else f'held to core {self.machine.core}'}")
        for name, reason in self.layers.items():
            lines.append(f"sandbox   {name:18s} {'active' if reason is None else 'MISSING: ' + reason}")
        for name, meaning in self.attempts.items():
            lines.append(f"sandbox   HOLE: {name}: {meaning}")
        for name, path in self.tools.items():
            hint = (
                f"missing: install the package {name}; programs that compile with it are left out"
                if path is None
                else path
            )
            lines.append(f"compiler  {name:18s} {hint}")
        source = "measured here" if self.calibrated else "default; measure it with: cudal1-env doctor --calibrate"
        lines.append(f"spread    {100 * self.spread.sigma:.2f} % from launch to launch ({source})")
        return "\n".join(lines)


def available_needs() -> set[str]:
    """Return which of a variant's `needs` this machine has."""
    needs: set[str] = set()
    if shutil.which("gcc") is not None:
        needs.add("compiler")
    return needs


def examine() -> Findings:
    """Look at this machine; takes a second."""
    import torch

    spread = load_spread()
    core = choose_core()
    return Findings(
        machine=CpuDevice(core).machine(core, torch.__version__, None),
        layers=dict(available_layers()),
        attempts=successful_attempts(),
        tools={name: shutil.which(name) for name in ("gcc", "g++", "ninja", "nvcc")},
        spread=spread,
        calibrated=spread_path().exists(),
    )


def calibrate(log: Callable[[str], None]) -> Spread:
    """Measure the spread: starter references against themselves, each in several fresh pairs of processes.

    Args:
        log: Told about progress.

    Returns:
        The spread, which was also kept for this machine.
    """
    launches: list[Launch] = []
    tasks = [task for task in load_suite("starter") if task.split == "train"][:: max(1, 30 // _CALIBRATION_TASKS)]
    for task in tasks[:_CALIBRATION_TASKS]:
        launches.extend(measure_against_itself(task, _CALIBRATION_LAUNCHES))
        log(f"{task.id}: {_CALIBRATION_LAUNCHES} launches")
    spread = calibrate_spread(launches)
    log(f"kept in {save_spread(spread)}; the default was {100 * DEFAULT_SPREAD.sigma:.2f} %")
    return spread


def as_candidate(task: Task) -> str:
    """Return the reference program as a candidate: the same text, with `ModelNew` for `Model`."""
    return task.source + "\n\nModelNew = Model\n"


def measure_against_itself(task: Task, count: int) -> list[Launch]:
    """Measure `count` launches of a reference against itself.

    Raises:
        MachineError: The reference was not judged right.
    """
    from cudal1_env.judge import Judge

    launches: list[Launch] = []
    with Judge() as judge:
        for _ in range(count):
            one = judge.evaluate(task, as_candidate(task))
            if not one.correct:
                raise MachineError(f"expected {task.id} to agree with itself, got {one.status}: {one.message}")
            launches.extend(Launch(reference, candidate) for reference, candidate in one.turns_ms)
    return launches
