"""Where tasks come from: one file for each source, and `spec`, which reads what a user typed."""

from cudal1_data.sources.spec import load_suite, load_task

__all__ = ["load_suite", "load_task"]
