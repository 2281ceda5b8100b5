"""What a template cannot do."""

from cudal1_data.errors import DataError


class UnsuitableError(DataError):
    """A task that a template is not made for; the message says which part of its program."""
