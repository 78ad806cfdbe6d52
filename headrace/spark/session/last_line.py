"""The last line of a program that ends with an error of the source: the error, below everything that Spark has printed.

Spark shows an error of the source as a Python traceback inside a Java stack trace, and its logs repeat both. A program
that does not catch the error ends with this one more line, after Spark's JVM has ended.
"""

from __future__ import annotations

import atexit
import re
import sys
from functools import cache
from types import TracebackType
from typing import Final

from headrace.spark.errors import error_line

_OURS: Final = re.compile(r"headrace[/\\.]spark")
_LINES: Final = list[str]()


@cache
def say_source_errors_last() -> None:
    """Print an uncaught error of the source in one line when the process ends. Calling this twice has no further
    effect."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if line := source_error(error):
            _LINES.append(line)

    sys.excepthook = hook


def source_error(error: BaseException) -> str:
    """Return the error in a line if it is one of Spark's that the source has raised; otherwise nothing."""
    is_of_spark = type(error).__module__.startswith(("pyspark.", "py4j."))
    return error_line(error) if is_of_spark and isinstance(error, Exception) and _OURS.search(str(error)) else ""


# Registered before a JVM is started, so it is called after the JVM has ended.
@atexit.register
def _say() -> None:
    for line in _LINES:
        print(f"headrace: {line}", file=sys.stderr, flush=True)
