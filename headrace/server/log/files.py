"""Rotated log files. As with mongod, the old file gets the time after its name."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from headrace.clock import SystemClock


def name_aside(path: Path) -> Path:
    """Return a free name for an old log: its name and the UTC time."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).strftime("%Y-%m-%dT%H-%M-%S")
    names = (path.with_name(f"{path.name}.{now}{f'-{number}' if number else ''}") for number in count())
    return next(name for name in names if not name.exists())
