"""Passes on the output of Spark's JVM and its Python workers, except tracebacks of workers that Spark has left.

When a query ends, Spark closes the sockets of its planning workers, and PySpark prints a traceback for each, although
nothing has failed. An error of a source, a stage or a sink has frames of other files, or another type, and is passed
on.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Final

from headrace import limits

_BEGIN: Final = "Traceback (most recent call last):"
_LINKS: Final = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_ENDED: Final = re.compile(
    r"(BrokenPipeError|ConnectionResetError|ConnectionRefusedError|EOFError|FileNotFoundError)\b"
)
_RAISED: Final = re.compile(r"[\w.]+(: .*)?$")
_FRAME: Final = re.compile(r'\s+File "([^"]+)"')
_PYSPARK: Final = re.compile(
    r"[/\\]pyspark[/\\]|^<frozen |[/\\]lib[/\\]python[\d.]+[/\\](contextlib|runpy|socket)\.py$"
)


def without_left_workers(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines without tracebacks that have only PySpark's frames and only errors of a closed socket."""
    block: list[str] = []
    for line in lines:
        text = line.rstrip("\r\n")
        if not block and text != _BEGIN:
            yield line
            continue
        if block and len(block) >= limits.TRACEBACK_LINE_COUNT_MAX:
            yield from (*block, line)
            block = []
            continue
        if block and not _continues(block, text):
            yield from _passed(block)
            block = []
            if text != _BEGIN:
                yield line
                continue
        block.append(line)
    yield from _passed(block)


def _continues(block: list[str], text: str) -> bool:
    """Whether a line belongs to the traceback whose lines so far are `block`."""
    if not text or text[0] == " " or text in _LINKS:
        return True
    last = next((line.rstrip("\r\n") for line in reversed(block) if line.strip()), "")
    if text == _BEGIN:
        return last in _LINKS
    # The line with the error itself, once after its frames.
    return last.startswith(" ") and _RAISED.match(text) is not None


def _passed(block: list[str]) -> list[str]:
    """Return the block, or nothing if it is the traceback of a left worker; empty lines after it belong to it."""
    errors = [line for line in block if line[:1].strip() and line.strip() not in {_BEGIN, *_LINKS}]
    frames = [match[1] for match in map(_FRAME.match, block) if match]
    left = errors and all(map(_ENDED.match, errors)) and frames and all(map(_PYSPARK.search, frames))
    return [] if left else block


def pass_on(output: IO[bytes], write: Callable[[str], object] | None = None) -> threading.Thread:
    """Start a thread that writes the output's lines, by default to standard error, until the output ends."""
    emit = write or (lambda line: os.write(2, line.encode(errors="replace")))

    def run() -> None:
        with output:
            for line in without_left_workers(raw.decode(errors="replace") for raw in output):
                emit(line)

    thread = threading.Thread(target=run, name="jvm-output", daemon=True)
    thread.start()
    return thread
