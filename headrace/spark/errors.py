"""Errors of the source's options, and errors as one line of text."""

from __future__ import annotations

import re
from typing import Final

# The last line of a traceback in a message of Spark's: `module.Kind: text`.
_RAISED: Final = re.compile(r"^(?:\w+\.)*([A-Z]\w*): (.+)$", re.MULTILINE)


class OptionError(ValueError):
    """An option of the source is missing or has an invalid value."""


def error_line(error: Exception) -> str:
    """The error as `Kind: text`; of a failed query, the Python exception in it, without query plans and topologies."""
    kind, text = type(error).__name__, str(error)
    _, traceback, rest = text.partition("Traceback (most recent call last):")
    raised = _RAISED.findall(rest.partition("=== Streaming Query ===")[0]) if traceback else []
    if raised:
        kind, text = raised[-1]
    return f"{kind}: {text.partition(', Topology Description')[0]}"
