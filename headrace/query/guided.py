"""The error of time-series collections. It names the guide to other ways."""

from __future__ import annotations

from typing import Final

GUIDE: Final = "docs/text-geo-time-series.md"
_UNSUPPORTED: Final = 115


TIME_SERIES_REFUSED: Final = (
    _UNSUPPORTED,
    f"time-series collections are not supported; {GUIDE} shows what to do instead",
)
