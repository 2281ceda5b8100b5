"""Diagnosis of this machine: what the judge can use, and what to install for the rest."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable

from cudal1_data import Task, load_suite
from cudal1_worker.layout import encode
from pydantic import BaseModel, ConfigDict

from cudal1_env.calibration import load_spread, save_spread, spread_path
from cudal1_env.errors import EnvError, MachineError
from cudal1_env.hardware import resolve_device
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.device.cpu import CpuDevice
from cudal1_env.judge.device.cuda.gpu import GpuFacts, gpu_facts
from cudal1_env.judge.measure.builder import Builder
from cudal1_env.judge.measure.fault import Fault
from cudal1_env.judge.oracle.replies import IoSpec
from cudal1_env.judge.workers.lease import choose_core, lease
from cudal1_env.records import Device, Machine
from cudal1_env.sandbox import advice, available_layers, successful_attempts
from cudal1_env.stats import DEFAULT_SPREAD, Spread, TrialSamples, calibrate_spread

_PACKAGES = {"gcc": "gcc", "g++": "g++", "ninja": "ninja-build", "nvcc": "NVIDIA's CUDA toolkit"}
"""What to install for each compiler."""
_CALIBRATION_TASKS = 6
_CALIBRATION_LAUNCHES = 4


class GpuFindings(BaseModel):
    """What `doctor` found about the GPU that the judge would use."""

    model_config = ConfigDict(frozen=True)

    problem: str | None
    """Why the judge cannot use it; None if it can."""
    facts: GpuFacts | None = None
    """The GPU and its driver; None if they could not be read."""

    def text(self) -> list[str]:
        """Return the findings as lines of text."""
        lines = [] if self.facts is None else self.facts.text()
        if self.problem is not None:
            lines.append(f"gpu       REFUSED: {self.problem}")
        else:
            lines.append("gpu       programs run on it inside the sandbox")
        return lines


class Findings(BaseModel):
    """What `doctor` found."""

    model_config = ConfigDict(frozen=True)

    machine: Machine
    """Host, CPU, versions."""
    device: Device
    """Where programs run by default."""
    gpu: GpuFindings | None
    """The GPU; None if no GPU is visible."""
    layers: dict[str, str | None]
    """Each sandbox layer: None if it is available, else why not."""
    attempts: dict[str, str]
    """Forbidden actions that a probe could do from inside the sandbox; empty on a sound machine."""
    tools: dict[str, str | None]
    """Compilers by name: path, or None."""
    spread: Spread
    """Trial-to-trial spread of this machine."""
    calibrated: bool
    """Whether the spread was measured here (else the default is used)."""

    @property
    def missing_layers(self) -> list[str]:
        """Layers that this machine does not offer."""
        return [name for name, reason in self.layers.items() if reason is not None]

    def text(self) -> str:
        """Return the findings as text."""
        lines = [f"machine   {self.machine.name}, {self.machine.cores} cores, {self.machine.kernel}"]
        lines.append(f"versions  Python {self.machine.python}, torch {self.machine.torch}")
        if self.gpu is None:
            lines.append("gpu       none found: programs run on the CPU")
        else:
            lines.extend(self.gpu.text())
        core = "shared with the judge (timing is coarse: use a machine with two cores)"
        lines.append(f"arms      {core if self.machine.core is None else f'held to core {self.machine.core}'}")
        for name, reason in self.layers.items():
            lines.append(f"sandbox   {name:18s} {'active' if reason is None else 'MISSING: ' + reason}")
        lines += [f"sandbox   to bring back {line}" for line in advice(self.missing_layers)]
        for name, meaning in self.attempts.items():
            lines.append(f"sandbox   HOLE: {name}: {meaning}")
        for name, path in self.tools.items():
            hint = (
                f"missing: install {_PACKAGES[name]}; programs that compile with it are left out"
                if path is None
                else path
            )
            lines.append(f"compiler  {name:18s} {hint}")
        source = "measured here" if self.calibrated else "default; measure it with: cudal1-env doctor --calibrate"
        lines.append(f"spread    {100 * self.spread.sigma:.2f} % from trial to trial ({source})")
        return "\n".join(lines)


def examine() -> Findings:
    """Examine this machine. This takes about 1 s, with a GPU about 20 s."""
    import torch

    device = resolve_device("auto")
    gpu = examine_gpu() if device == "cuda" else None
    identity = gpu.facts.uuid if gpu is not None and gpu.facts is not None else ""
    core = choose_core()
    return Findings(
        machine=CpuDevice(core).machine(core, torch.__version__, None),
        device=device,
        gpu=gpu,
        layers=dict(available_layers(device)),
        attempts=successful_attempts(device),
        tools={name: shutil.which(name) for name in _PACKAGES},
        spread=load_spread(device, identity),
        calibrated=spread_path(device, identity).exists(),
    )


def examine_gpu() -> GpuFindings:
    """Examine the GPU that the judge would use: its settings, and whether a program runs on it in the sandbox."""
    from cudal1_env.judge.device.cuda.device import CudaDevice  # starts torch and the GPU

    facts: GpuFacts | None = None
    try:
        facts = gpu_facts()
        gpu = CudaDevice(tf32=False)
    except EnvError as error:
        return GpuFindings(problem=str(error), facts=facts)
    try:
        with lease(*gpu.locks), contextlib.closing(Builder(JudgeSettings(), gpu, choose_core())) as builder:
            return GpuFindings(problem=why_no_program_runs(builder), facts=facts)
    except (EnvError, *gpu.faults) as error:
        return GpuFindings(problem=f"{type(error).__name__}: {error}", facts=facts)


_PROGRAM = """
import torch

class ModelNew:
    def __init__(self):
        ones = torch.ones(1024, device="{device}")
        if int((ones + ones).sum()) != 2048:
            raise RuntimeError("the sum of 1024 twos is not 2048")
"""


def why_no_program_runs(builder: Builder) -> str | None:
    """Import a program in a worker and construct its model, which runs PyTorch kernels on the device.

    Args:
        builder: Forks the worker. The caller holds the lease of its device.

    Returns:
        What went wrong, or None.
    """
    worker = builder.zygote.fork("arm", builder.spec(None, core=builder.core))
    io_spec = IoSpec(
        entries=[],
        size_bytes=4096,
        arguments=encode([]),
        state=(),
        outputs=(),
        work_bytes=0,
        constant_inputs=(),
        seeded=(),
        changed=(),
    )
    arm = builder.arm(worker, io_spec, "ModelNew")
    try:
        arm.build(_PROGRAM.format(device=builder.device.name))
        arm.construct(0)
    except Fault as fault:
        return f"{fault.status}: {fault.message}"
    finally:
        arm.close()
    return None


def calibrate(log: Callable[[str], None]) -> Spread:
    """Measure the spread in control trials: starter references against themselves, several trials each.

    Args:
        log: Called with progress messages.

    Returns:
        The spread, which is also saved for this machine's CPU or for the GPU.

    Raises:
        MachineError: Other programs disturb the machine so much that a spread says nothing.
    """
    trials: list[TrialSamples] = []
    device = resolve_device("auto")
    tasks = [task for task in load_suite("starter", device=device) if task.split == "train"][
        :: max(1, 30 // _CALIBRATION_TASKS)
    ]
    identity = ""
    for task in tasks[:_CALIBRATION_TASKS]:
        with Judge(JudgeSettings(device=device)) as judge:
            identity = judge.device.identity
            trials.extend(measure_against_itself(judge, task, _CALIBRATION_LAUNCHES))
        log(f"{task.id}: {_CALIBRATION_LAUNCHES} trials")
    try:
        spread = calibrate_spread(trials)
    except ValueError as error:
        raise MachineError(f"nothing is calibrated: {error}; stop other programs and try again") from error
    log(f"kept in {save_spread(spread, device, identity)}; the default was {100 * DEFAULT_SPREAD.sigma:.2f} %")
    return spread


def as_candidate(task: Task) -> str:
    """Return the reference program as a candidate: the same text, with `ModelNew` for `Model`."""
    return task.source + "\n\nModelNew = Model\n"


def measure_against_itself(judge: Judge, task: Task, count: int) -> list[TrialSamples]:
    """Measure control trials: evaluate a reference `count` times against itself.

    Raises:
        MachineError: The reference was not CORRECT.
    """
    trials: list[TrialSamples] = []
    for _ in range(count):
        one = judge.evaluate(task, as_candidate(task))
        if not one.correct:
            raise MachineError(f"the reference of {task.id} is not CORRECT against itself: {one.status}: {one.message}")
        trials.extend(TrialSamples(reference, candidate) for reference, candidate in one.samples_ms)
    return trials
