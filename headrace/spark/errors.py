"""What the source refuses, and how errors are told to people."""

from __future__ import annotations

import re
from typing import Final

# The end of a traceback inside a message of Spark's: `module.Kind: what it says`.
_RAISED: Final = re.compile(r"^(?:\w+\.)*([A-Z]\w*): (.+)$", re.MULTILINE)


class OptionError(ValueError):
    """An option of the source has a value that it does not take, or is missing."""


def error_line(error: Exception) -> str:
    """The error in a line: of a query that stopped what was raised in it, without plans and all servers' states."""
    kind, text = type(error).__name__, str(error)
    _, traceback, rest = text.partition("Traceback (most recent call last):")
    raised = _RAISED.findall(rest.partition("=== Streaming Query ===")[0]) if traceback else []
    if raised:
        kind, text = raised[-1]
    return f"{kind}: {text.partition(', Topology Description')[0]}"
