"""Operator graphs of references, traced in a separate process.

`process.trace_tasks` executes references in a child process (`child.py`, `tracer.py`, `constants.py`). `canonical/`
makes the traced graphs comparable and fingerprints them.
"""

from cudal1_data.tracing.process import Tracer, trace_tasks
from cudal1_data.tracing.tasks import TaskGraph

__all__ = ["TaskGraph", "Tracer", "trace_tasks"]
