"""Puts the programs of tests/exploits into the wheel, and into the source distribution, for wheels built from that.

A plain `force-include` would name a folder that a source distribution does not have. Editable installs need nothing:
the programs are found in the checkout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import (  # pyright: ignore[reportMissingImports]  # there when building
    BuildHookInterface,
)


class ExploitPrograms(BuildHookInterface):
    """Adds one folder to what hatch is forced to include."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatch before it builds."""
        if version == "editable":
            return
        unpacked, checkout = Path(self.root, "exploits"), Path(self.root).parents[1] / "tests" / "exploits"
        source = unpacked if unpacked.is_dir() else checkout
        target = "exploits" if self.target_name == "sdist" else "cudal1_env/testing/exploits"
        build_data["force_include"][str(source)] = target
