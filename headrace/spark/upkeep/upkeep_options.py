"""The options of the upkeep of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """See `[sink.upkeep]` (`sinks/sink_model.py`). `keep_seconds` is None if rows stay forever."""

    every_seconds: int = 600
    target_bytes: int = 128_000_000
    retain_seconds: int = 86_400
    commits: int = 2000
    keep_seconds: int | None = None
