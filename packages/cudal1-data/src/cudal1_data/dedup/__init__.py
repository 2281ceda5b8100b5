"""Near-duplicates: which tasks ask for the same computation at another shape.

`overlaps.py` compares the graphs of two suites; `duplicates.py` finds the training tasks that overlap a test.
"""

from cudal1_data.dedup.duplicates import near_duplicates
from cudal1_data.dedup.overlaps import Overlap, OverlapReport, find_overlaps

__all__ = ["Overlap", "OverlapReport", "find_overlaps", "near_duplicates"]
