"""A program's failure, as data."""

from __future__ import annotations

from cudal1_env.records import Status


class Fault(Exception):
    """A program failed, with the status that this gets. Data, not an error of the judge."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
