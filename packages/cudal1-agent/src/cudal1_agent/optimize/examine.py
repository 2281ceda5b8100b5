"""Description of a module from calling it, in a separate process before any judge is started.

The process is not a sandbox, because the user runs this module anyway.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from cudal1_data import Device
from pydantic import BaseModel, ConfigDict, Field

from cudal1_agent.errors import OptimizeError
from cudal1_agent.optimize.target import Target


class TensorForm(BaseModel):
    """Shape, dtype and strides of one tensor."""

    model_config = ConfigDict(frozen=True)

    shape: tuple[int, ...]
    dtype: str
    """Name without `torch.`, such as `float32`."""
    stride: tuple[int, ...]


class InputForm(BaseModel):
    """One input: a tensor's form, or a plain value."""

    model_config = ConfigDict(frozen=True)

    tensor: TensorForm | None = None
    """None for a plain value."""
    value: bool | int | float | str | None = None
    """The plain value."""


class Examined(BaseModel):
    """Inputs, outputs, state and cost of one module."""

    model_config = ConfigDict(frozen=True)

    inputs: tuple[InputForm, ...]
    """Arguments of `forward`."""
    outputs: tuple[TensorForm, ...]
    """Tensors that it returns."""
    returns: Literal["tensor", "tuple", "list"]
    """Form in which it returns them."""
    state: dict[str, TensorForm]
    """Parameters and buffers by name."""
    configuration: dict[str, dict[str, str]]
    """Class and plain attributes of each submodule as text, by path."""
    training: bool
    """Whether the constructor leaves it in training mode."""
    mode_matters: bool
    """Whether its outputs differ between training and evaluation mode."""
    moved_bytes: int = Field(ge=0)
    """Bytes of inputs and outputs."""
    flops: int = Field(ge=0)
    """Floating-point operations of its matrix products, convolutions and attention."""
    functions: int = Field(ge=0)
    """Number of elements of exponentials, logarithms and similar functions."""
    bytes_ms: float = Field(ge=0)
    """Shortest measured time in which this device reads and writes `moved_bytes` in a copy."""
    flops_ms: float = Field(ge=0)
    """The same for arithmetic: `flops` at the rate of a large float32 matrix product, and on a CPU `functions` at the
    rate of exponentials."""

    @property
    def bound_ms(self) -> float:
        """Shortest time expected of any program for the module: the larger of its two bounds."""
        return max(self.bytes_ms, self.flops_ms)

    @property
    def bound_by(self) -> str:
        """What sets that bound."""
        return "arithmetic" if self.flops_ms > self.bytes_ms else "memory"


def examine(target: Target, device: Device, *, timeout_s: float) -> Examined:
    """Construct and call a module, and describe it.

    Args:
        target: The module.
        device: Where it is called.
        timeout_s: Longest time.

    Raises:
        OptimizeError: The module cannot be judged: it fails, is random, changes its inputs or its state, lies on
            another device, or takes too long.
    """
    with TemporaryDirectory() as folder:
        source = Path(folder) / f"{target.path.stem if target.path.stem.isidentifier() else 'module'}.py"
        source.write_text(target.task.source, encoding="utf-8")
        found = run_child("examine_child", [str(source), device], timeout_s=timeout_s, what=target.name)
    return Examined.model_validate(found)


def run_child(name: str, arguments: Sequence[str], *, timeout_s: float, what: str) -> dict[str, Any]:
    """Run a module of this package in a separate process; return the JSON object in its last line.

    Args:
        name: Module of this package.
        arguments: Its arguments.
        timeout_s: Longest time; then its process group is killed.
        what: Name of what is run, for the error.

    Raises:
        OptimizeError: It failed, reported an error, or took too long.
    """
    command = [sys.executable, "-m", f"cudal1_agent.optimize.{name}", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
    ) as child:
        try:
            out, err = child.communicate(timeout=max(timeout_s, 1.0))
        except subprocess.TimeoutExpired as error:
            raise OptimizeError(f"{what} was not finished after {timeout_s:.0f} s; give a larger --budget") from error
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
    last = out.decode(errors="replace").strip().rpartition("\n")[2]
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        said = err.decode(errors="replace").strip().rpartition("\n")[2]
        raise OptimizeError(f"{what} ended its process with exit code {child.returncode}: {said or 'nothing was said'}")
    if "error" in found:
        raise OptimizeError(f"{what} cannot be optimised: {found['error']}")
    return found
