"""The sandbox layers of this machine, the specification made from them, and checks of required layers."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cudal1_data.suggest import did_you_mean
from cudal1_worker.sandbox import LAYERS, Spec, readable_paths

from cudal1_env.errors import SandboxError
from cudal1_env.records import Device

_PROBE_TIMEOUT_S = 60

_EXPLOITS = Path(__file__).resolve().parents[1] / "testing" / "exploits"
"""Exists only in an installed package. Its honest programs are correct answers to some tasks of the starter suite."""

KEPT_VARIABLES = (
    "PATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "CPATH",
    "CC",
    "CXX",
    "PYTHONPATH",
)
"""Environment variables that a zygote keeps, in addition to those with one of `KEPT_PREFIXES`."""

KEPT_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "CONDA_PREFIX")


@functools.cache
def _probed(device: Device) -> dict[str, dict[str, str | None]]:
    """Run the probe once for each device."""
    command = [sys.executable, "-m", "cudal1_worker.sandbox.probe", device]
    try:
        done = subprocess.run(
            command, env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_TIMEOUT_S
        )
        answer: dict[str, dict[str, str | None]] = json.loads(done.stdout)
        return answer
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise SandboxError(f"the sandbox probe failed: {error}; run `{' '.join(command)}` to see why") from error


def available_layers(device: Device = "cpu") -> dict[str, str | None]:
    """Return each layer's name, with None if it can be entered here, else the reason why not.

    A separate process tries each layer, once for each device.

    Raises:
        SandboxError: The probe did not answer.
    """
    return dict(_probed(device)["layers"])


def successful_attempts(device: Device = "cpu") -> dict[str, str]:
    """Return the forbidden actions that a probe could do inside the sandbox: name of the attempt and its meaning.

    Raises:
        SandboxError: The probe did not answer.
    """
    return {name: text for name, text in _probed(device)["attempts"].items() if text is not None}


def require_layers(demanded: Iterable[str], missing: Mapping[str, str | None]) -> None:
    """Check that required layers are available.

    Args:
        demanded: Names of the required layers.
        missing: Why each layer is missing; None means available. From `available_layers()`, or a worker's report.

    Raises:
        SandboxError: A layer is missing, or its name is unknown.
    """
    names = list(demanded)
    if unknown := sorted(set(names) - set(LAYERS)):
        raise SandboxError(f"unknown sandbox layer {unknown[0]!r}; {did_you_mean(unknown[0], LAYERS)}")
    if lacking := [name for name in names if missing.get(name) is not None]:
        reasons = "; ".join(f"{name} ({missing[name]})" for name in lacking)
        raise SandboxError(f"this machine lacks required sandbox layers: {reasons}; require fewer of them")


def default_spec(device: Device = "cpu", **changes: Any) -> Spec:
    """Return the strongest specification for this machine, with fields changed by name.

    Exploit programs that were installed with this package are always hidden.

    Raises:
        SandboxError: The probe did not answer, or a required layer is missing.
    """
    layers = available_layers(device)
    spec = Spec(
        device=device,
        layers=tuple(name for name in LAYERS if layers[name] is None),
        readable=readable_paths(),
    )
    spec = replace(spec, **changes)
    if _EXPLOITS.is_dir():
        spec = replace(spec, hidden=(*spec.hidden, str(_EXPLOITS)))
    require_layers(spec.demanded, layers)
    return spec


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment of a zygote, without the user's keys, tokens and paths, which a program could read."""
    kept = {
        name: value for name, value in os.environ.items() if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES)
    }
    return {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", **kept, **more}
