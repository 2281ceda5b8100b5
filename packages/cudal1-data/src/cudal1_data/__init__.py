"""Tasks, suites and corpora. Importing this package imports no torch."""

from cudal1_data.errors import BrokenTaskError, DataError, UnknownSuiteError, UnknownTaskError
from cudal1_data.task import Device, Size, SizeFamily, Split, Task, Variant

__all__ = [
    "BrokenTaskError",
    "DataError",
    "Device",
    "Size",
    "SizeFamily",
    "Split",
    "Task",
    "UnknownSuiteError",
    "UnknownTaskError",
    "Variant",
]
