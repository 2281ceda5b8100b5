"""Tasks, suites and corpora. Importing this package imports no torch."""

from typing import TYPE_CHECKING

from cudal1_data.lazy import lazily

if TYPE_CHECKING:
    from cudal1_data.errors import BrokenTaskError, DataError, UnknownSuiteError, UnknownTaskError
    from cudal1_data.sources import load_suite, load_task
    from cudal1_data.suite import Broken, Suite
    from cudal1_data.task import Device, Size, SizeFamily, Split, Task, Variant
    from cudal1_data.variants import usable_variants

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(
            ("BrokenTaskError", "DataError", "UnknownSuiteError", "UnknownTaskError"), "cudal1_data.errors"
        ),
        **dict.fromkeys(("load_suite", "load_task"), "cudal1_data.sources"),
        **dict.fromkeys(("Broken", "Suite"), "cudal1_data.suite"),
        **dict.fromkeys(("Device", "Size", "SizeFamily", "Split", "Task", "Variant"), "cudal1_data.task"),
        "usable_variants": "cudal1_data.variants",
    },
)

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
