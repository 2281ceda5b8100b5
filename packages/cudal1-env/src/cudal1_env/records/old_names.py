"""Old names of renamed fields, so that published records and audits stay readable."""

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
"""Old name of each renamed field."""


def also_old(name: str) -> AliasChoices:
    """Return the alias choices under which a field is read: its name and its old name."""
    return AliasChoices(name, OLD_NAMES[name])
