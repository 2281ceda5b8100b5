"""Operator graphs of references: which tasks ask for the same computation at another shape.

`process.trace_tasks` executes references in a child process (`child.py`, `tracer.py`, `constants.py`); `fold.py`,
`products.py`, `build.py` and `chains.py` make what was traced comparable; `graph.py` gives it a fingerprint;
`overlaps.py` compares suites.
"""

from cudal1_data.graphs.overlaps import Overlap, OverlapReport, find_overlaps
from cudal1_data.graphs.process import Tracer, trace_tasks
from cudal1_data.graphs.tasks import TaskGraph

__all__ = ["Overlap", "OverlapReport", "TaskGraph", "Tracer", "find_overlaps", "trace_tasks"]
