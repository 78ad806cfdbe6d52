"""What the source refuses, and how errors are told to people."""

from __future__ import annotations


class OptionError(ValueError):
    """An option of the source has a value that it does not take, or is missing."""


def told(error: Exception) -> str:
    """The error in a line, without what a driver adds of all the servers that it knows."""
    return f"{type(error).__name__}: {str(error).partition(', Topology Description')[0]}"
