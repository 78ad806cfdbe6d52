"""`--from`: turn the word of a command line into the options that say where a change stream begins."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any, Final

from bson import Timestamp, json_util

from headrace.cli.arguments import Failed

EARLIEST: Final = "earliest"
_AGO: Final = re.compile(r"^(\d+)(s|m|h|d)$")
_SECONDS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_TOKEN: Final = re.compile(r"^8[0-9A-Fa-f]{16,}$")


def start_of(word: str | None) -> dict[str, Any]:
    """Return options of `$changeStream`: none to begin now, `{EARLIEST: True}` for the oldest entry. Raises Failed."""
    if word is None:
        return {}
    if word == EARLIEST:
        return {EARLIEST: True}
    if word.startswith("{"):
        token = json_object(word, "--from")
        if "_data" not in token:
            raise Failed(f"--from is not a resume token, which has a field _data: {word}", 2)
        return {"startAfter": token}
    if _TOKEN.match(word):
        return {"startAfter": {"_data": word}}
    return {"startAtOperationTime": Timestamp(seconds_of(word), 0)}


def seconds_of(word: str) -> int:
    """Parse a time, or an age such as 10m, into seconds since the Unix epoch. Raises Failed for other texts."""
    ago = _AGO.match(word)
    if ago is not None:
        return max(int(time.time()) - int(ago[1]) * _SECONDS[ago[2]], 1)
    if word.isascii() and word.isdecimal():
        seconds = int(word[:11])
    else:
        try:
            at = datetime.fromisoformat(word)
        except ValueError:
            raise Failed(
                f"{word!r} is neither a resume token, nor a time such as 2026-11-22T10:00:00Z, 10m or 2h, "
                f"nor {EARLIEST}", 2
            ) from None  # fmt: skip
        seconds = int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp())
    if not 0 < seconds < 1 << 32:
        raise Failed(f"{word} is outside of what cluster times can be: 1970 to 2106", 2)
    return seconds


def json_object(text: str, option: str) -> dict[str, Any]:
    """Parse an option's Extended JSON into a document. Raises Failed."""
    value = json_of(text, option)
    if not isinstance(value, dict):
        raise Failed(f"{option} is not a JSON object: {text}", 2)
    return value


def json_of(text: str, option: str) -> Any:
    """Parse an option's Extended JSON into a value. Raises Failed."""
    try:
        return json_util.loads(text)
    except (TypeError, ValueError) as error:
        raise Failed(f"{option} is not JSON: {error}", 2) from None
