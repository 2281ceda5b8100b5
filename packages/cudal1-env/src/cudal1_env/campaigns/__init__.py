"""Campaigns: jobs of several hours on many programs or tasks, which resume after an interruption; and `replay`.

- `sweep`: judge every program of a file.
- `audit`: put incorrect answers and faulty programs through the checker of every task.
- `verify`: judge pairs of a corpus.
- `redteam`: judge attacks and their honest look-alikes.
- `replay`: repeat one evaluation from its record.
"""
