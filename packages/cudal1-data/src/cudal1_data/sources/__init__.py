"""Sources of tasks: one file per source, and `spec`, which parses a user's specification."""

from cudal1_data.sources.spec import load_suite, load_task

__all__ = ["load_suite", "load_task"]
