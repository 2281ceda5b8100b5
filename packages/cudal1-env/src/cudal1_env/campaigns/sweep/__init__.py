"""A sweep: the judge evaluates every program of a file, and the verdicts are compared with the published figures."""

from cudal1_env.campaigns.sweep.lines import SweepFile, SweepLine
from cudal1_env.campaigns.sweep.programs import Program, read_programs
from cudal1_env.campaigns.sweep.report import SweepReport, summarise
from cudal1_env.campaigns.sweep.run import joined, sweep

__all__ = ["Program", "SweepFile", "SweepLine", "SweepReport", "joined", "read_programs", "summarise", "sweep"]
