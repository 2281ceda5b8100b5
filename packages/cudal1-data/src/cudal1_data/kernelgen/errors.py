"""Exceptions of templates."""

from cudal1_data.errors import DataError


class UnsuitableError(DataError):
    """A task that a template does not support; the message names the part of its program."""
