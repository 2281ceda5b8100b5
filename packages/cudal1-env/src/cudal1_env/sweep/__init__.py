"""A sweep: every program of a file is judged, and what was published of it stands beside the verdict."""

from cudal1_env.sweep.lines import SweepFile, SweepLine
from cudal1_env.sweep.programs import Program, read_programs
from cudal1_env.sweep.report import SweepReport, summarise
from cudal1_env.sweep.run import sweep

__all__ = ["Program", "SweepFile", "SweepLine", "SweepReport", "read_programs", "summarise", "sweep"]
