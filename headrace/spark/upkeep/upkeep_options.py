"""The options of a job's file for the upkeep of its tables: `[sink.upkeep]`, or `upkeep = false` for none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_SECONDS: Final = {"day": 86_400, "hour": 3600, "minute": 60, "second": 1, "week": 604_800}
_BYTES: Final = {"B": 1, "GB": 1000**3, "KB": 1000, "MB": 1000**2}
_DURATION: Final = re.compile(r"(\d+) (second|minute|hour|day|week)s?")
_SIZE: Final = re.compile(r"(\d+) ?(B|KB|MB|GB)")
KEEPING_KINDS: Final = frozenset({"changes", "history"})
"""The kinds of sinks that have rows of which old ones can be removed."""


class UpkeepError(ValueError):
    """There is no such upkeep; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """`keep_seconds` None: rows stay for ever."""

    every_seconds: int = 600
    target_bytes: int = 128_000_000
    retain_seconds: int = 86_400
    commits: int = 2000
    keep_seconds: int | None = None


def parse_upkeep(given: Mapping[str, Any] | bool, kind: str) -> UpkeepOptions | None:
    """The upkeep of a sink of that kind; None for `false`. Raises UpkeepError."""
    if isinstance(given, bool):
        return UpkeepOptions() if given else None
    if "keep" in given and kind not in KEEPING_KINDS:
        raise UpkeepError(f"keep is for {' and '.join(sorted(KEEPING_KINDS))}: the sink {kind!r} has no rows of a time")
    default = UpkeepOptions()
    keep = _seconds(given["keep"], "keep") if "keep" in given else None
    retain = _seconds(given["retain"], "retain") if "retain" in given else default.retain_seconds
    if retain % _SECONDS["hour"]:
        raise UpkeepError(f"retain is in whole hours, not {given['retain']!r}")
    return UpkeepOptions(
        every_seconds=_seconds(given["every"], "every") if "every" in given else default.every_seconds,
        target_bytes=_bytes(given["target"]) if "target" in given else default.target_bytes,
        retain_seconds=retain,
        commits=given.get("commits", default.commits),
        keep_seconds=keep,
    )


def _seconds(text: Any, name: str) -> int:
    matched = _DURATION.fullmatch(str(text))
    if matched is None:
        raise UpkeepError(f'{name} is a duration such as "30 days", not {text!r}')
    return int(matched[1]) * _SECONDS[matched[2]]


def _bytes(text: Any) -> int:
    matched = _SIZE.fullmatch(str(text))
    if matched is None or not int(matched[1]):
        raise UpkeepError(f'target is a size such as "128 MB", not {text!r}')
    return int(matched[1]) * _BYTES[matched[2]]
