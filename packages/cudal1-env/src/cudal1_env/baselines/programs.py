"""Baselines: ways to run the reference, each a program made from the task's source.

A baseline is judged like a candidate, by the same code and with the same rules. The lines after the reference keep the
names of its parameters and buffers, so that the judge's weights load. `eager` is the reference's arm
itself and needs no program.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from typing import Literal

from cudal1_data.kernelgen.codegen.rewrites import CAPTURED
from cudal1_data.suggest import did_you_mean

from cudal1_env.errors import SettingsError
from cudal1_env.records import Device

BaselineName = Literal[
    "eager", "compile", "compile-reduce-overhead", "compile-max-autotune", "cuda-graph", "cudnn-flags"
]
"""Ways to run the reference; docs/decisions/007-baselines.md has the reasons."""

ALL = "all"
"""All baselines of the device, except those of `ON_REQUEST`."""

ON_REQUEST: tuple[BaselineName, ...] = ("compile-max-autotune",)
"""Baselines that take minutes for a task, measured only if named."""

_COMPILED = '''

class ModelNew(Model):
    """The reference, compiled in place: the names of its state stay."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.compile({options})
'''

_FLAGS = '''

torch.backends.cudnn.benchmark = True


class ModelNew(Model):
    """The reference, with the algorithms that cuDNN finds fastest on these shapes."""
'''

_LINES: dict[BaselineName, str] = {
    "compile": _COMPILED.format(options=""),
    "compile-reduce-overhead": _COMPILED.format(options='mode="reduce-overhead"'),
    "compile-max-autotune": _COMPILED.format(options='mode="max-autotune"'),
    "cuda-graph": CAPTURED,
    "cudnn-flags": _FLAGS,
}
"""Lines after the reference. None sets TF32, which the judge sets for both arms."""

BASELINES: tuple[BaselineName, ...] = ("eager", *_LINES)
"""Names of all baselines."""

_WITHOUT_GPU: tuple[BaselineName, ...] = ("eager", "compile")


def program(name: BaselineName, reference: str) -> str:
    """Return the program of a baseline.

    Args:
        name: Any but `eager`.
        reference: The task's source, in KernelBench's form.

    >>> print(program("cudnn-flags", "import torch").splitlines()[5])
    torch.backends.cudnn.benchmark = True
    """
    # The reference may import torch only under another name.
    return f"{reference}\n\nimport torch\n{_LINES[name]}"


def resolve(names: Iterable[str], device: Device) -> tuple[BaselineName, ...]:
    """Return the named baselines, in the order of `BASELINES` and including `eager`.

    Args:
        names: Names, or `all`. Without names, the result is empty.
        device: Where programs run.

    Raises:
        SettingsError: A name is unknown, or this device or machine cannot run the baseline.
    """
    asked = set(names)
    if not asked:
        return ()
    if unknown := sorted(asked - {*BASELINES, ALL}):
        raise SettingsError(f"unknown baseline {unknown[0]!r}; {did_you_mean(unknown[0], [*BASELINES, ALL])}")
    lacking = missing(device)
    if refused := [f"{name}: {reason}" for name, reason in lacking.items() if name in asked]:
        raise SettingsError(f"this machine lacks some baselines: {'; '.join(refused)}")
    every = [name for name in BASELINES if name not in ON_REQUEST and name not in lacking] if ALL in asked else []
    return tuple(name for name in BASELINES if name == "eager" or name in asked or name in every)


def missing(device: Device) -> dict[BaselineName, str]:
    """Return the baselines that this machine cannot run, with the reason."""
    if device == "cuda":
        return {}
    reasons: dict[BaselineName, str] = {
        name: "it needs an NVIDIA GPU" for name in BASELINES if name not in _WITHOUT_GPU
    }
    if shutil.which("g++") is None:
        reasons["compile"] = "it needs a C++ compiler; install g++"
    return reasons


def measured(names: Sequence[BaselineName]) -> tuple[BaselineName, ...]:
    """Return the names without `eager`, which every evaluation measures."""
    return tuple(name for name in names if name != "eager")
