"""Campaigns: work of hours on many programs or tasks, which resumes where it was cut off, and the repetition of one.

- `sweep`: every program of a file is judged.
- `audit`: incorrect answers and faulty programs go through the checker of every task.
- `verify`: pairs of a corpus are judged.
- `redteam`: attacks and their honest look-alikes are judged.
- `replay`: one evaluation is repeated from its record.
"""
