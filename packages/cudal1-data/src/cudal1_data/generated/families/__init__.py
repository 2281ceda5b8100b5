"""The families: one function each, which writes a task into a program."""

from __future__ import annotations

from collections.abc import Callable

from cudal1_data.generated.draw import Draw
from cudal1_data.generated.families.elementwise import elementwise
from cudal1_data.generated.families.norm import norm
from cudal1_data.generated.families.reduction import reduction
from cudal1_data.generated.program import Program

Family = Callable[[Program, Draw], None]

FAMILIES: dict[str, Family] = {
    "elementwise": elementwise,
    "reduction": reduction,
    "norm": norm,
}
"""By name, in the order in which `generated` gives them."""
