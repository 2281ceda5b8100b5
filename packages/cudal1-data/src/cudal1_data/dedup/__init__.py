"""Near-duplicates: which tasks ask for the same computation at another shape.

`overlaps.py` compares two suites; `duplicates.py` finds the training tasks that overlap a test; `behaviours.py` finds
those that do the same to small inputs.
"""

from cudal1_data.dedup.duplicates import near_duplicates
from cudal1_data.dedup.overlaps import Overlap, OverlapReport, find_overlaps

__all__ = ["Overlap", "OverlapReport", "find_overlaps", "near_duplicates"]
