"""Log files that are rotated: renamed with the time after their name, as mongod does it, and begun again."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from headrace.clock import SystemClock


def name_aside(path: Path) -> Path:
    """A free name for an old log: with the UTC time after it."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).strftime("%Y-%m-%dT%H-%M-%S")
    names = (path.with_name(f"{path.name}.{now}{f'-{number}' if number else ''}") for number in count())
    return next(name for name in names if not name.exists())
