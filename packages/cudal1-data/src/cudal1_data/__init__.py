"""Tasks, suites and corpora. Importing this package imports no torch."""

from cudal1_data.errors import BrokenTaskError, DataError, UnknownSuiteError, UnknownTaskError
from cudal1_data.sources import load_suite, load_task
from cudal1_data.suite import Broken, Suite
from cudal1_data.task import Device, Size, SizeFamily, Split, Task, Variant
from cudal1_data.variants import usable_variants

__all__ = [
    "Broken",
    "BrokenTaskError",
    "DataError",
    "Device",
    "Size",
    "SizeFamily",
    "Split",
    "Suite",
    "Task",
    "UnknownSuiteError",
    "UnknownTaskError",
    "Variant",
    "load_suite",
    "load_task",
    "usable_variants",
]
