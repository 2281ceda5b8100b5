"""Near-duplicates: tasks with the same computation at another shape.

`overlaps.py` compares two suites; `duplicates.py` finds the training tasks that overlap a test; `behaviours.py` finds
tasks that compute the same on small inputs.
"""

from cudal1_data.dedup.duplicates import near_duplicates
from cudal1_data.dedup.overlaps import Overlap, OverlapReport, find_overlaps

__all__ = ["Overlap", "OverlapReport", "find_overlaps", "near_duplicates"]
