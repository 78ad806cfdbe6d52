"""The errors of 2d indexes and time-series collections. They name the guide to other ways."""

from __future__ import annotations

from typing import Final

GUIDE: Final = "docs/text-geo-time-series.md"
_UNSUPPORTED: Final = 115


def no_geo(name: str) -> tuple[int, str]:
    """Return code and message for a geospatial operator, stage or index that is not there."""
    return (
        _UNSUPPORTED,
        f"{name}: 2d indexes are not supported; {GUIDE} shows what to do instead",
    )


TIME_SERIES_REFUSED: Final = (
    _UNSUPPORTED,
    f"time-series collections are not supported; {GUIDE} shows what to do instead",
)
