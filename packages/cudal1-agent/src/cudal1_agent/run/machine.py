"""The machine that a run is on: verdicts of another one are kept, but never looked up."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cudal1_data import Device
from pydantic import BaseModel, ConfigDict, Field

from cudal1_agent.run.files import write_aside

MACHINE = "machine.json"
"""File in the run directory: the run's last machine, and the archive's position when the run moved to it."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class MachineNote(BaseModel):
    """The machine that a run was on last."""

    model_config = ConfigDict(frozen=True)

    machine: str
    """`machine_key` of it."""
    archive_position: int = Field(ge=0)
    """Position of the archive's last evaluation when the run moved to it."""


def machine_key(device: Device) -> str:
    """Return a hash of this machine's boot and its GPUs."""
    import torch

    parts = [_BOOT.read_text().strip(), device]
    if device == "cuda" and torch.cuda.is_available():
        parts += [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def verdicts_floor(run_dir: Path, machine: str, position: int) -> int:
    """Return the archive position up to which no verdict may be looked up, and note the machine.

    Args:
        run_dir: The run directory.
        machine: `machine_key` of this machine.
        position: Position of the archive's last evaluation.
    """
    path = run_dir / MACHINE
    note = MachineNote.model_validate_json(path.read_bytes()) if path.is_file() else None
    if note is None or note.machine != machine:
        note = MachineNote(machine=machine, archive_position=position)
        write_aside(path, note.model_dump_json() + "\n")
    return note.archive_position
