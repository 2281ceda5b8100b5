"""Old names of renamed fields: records and audits that are published with them stay readable."""

from __future__ import annotations

from pydantic import AliasChoices

OLD_NAMES = {
    "samples": "turns",
    "roofline_ms": "floor_ms",
    "roofline_fraction": "floor_fraction",
    "trials": "launches",
    "pairs": "rounds",
    "samples_ms": "turns_ms",
    "foreign_gpu_processes": "strangers",
    "influential": "mattered",
    "max_sets": "most_sets",
}
"""The old name of each field that was renamed."""


def also_old(name: str) -> AliasChoices:
    """Return what makes a field readable under its name and its old one."""
    return AliasChoices(name, OLD_NAMES[name])
