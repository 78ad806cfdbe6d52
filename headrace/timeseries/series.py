"""The options of a time series collection, and what follows from them: the time spans and the `_id`s of its buckets.

    _id of a bucket   seconds of its start (4 bytes, big-endian) | digest of meta (5) | sequence number (3)

The start of a bucket is the time of its first measurement, rounded down. Every measurement in the bucket is less than
`span_seconds` later. So a range of time is a range of `_id`s, and a source's newest bucket is found by its `_id`.
Source: MongoDB's documentation of `granularity`, `bucketMaxSpanSeconds` and `bucketRoundingSeconds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bson import ObjectId

PREFIX: Final = "system.buckets."
UNPACK: Final = "$_internalUnpackBucket"
SPANS: Final = {"hours": 2_592_000, "minutes": 86_400, "seconds": 3600}
"""The longest time between the first and the last measurement of a bucket in seconds, by granularity."""
ROUNDINGS: Final = {"hours": 86_400, "minutes": 3600, "seconds": 60}
"""The start of a bucket is rounded down to a multiple of this many seconds, by granularity."""
_SECONDS_MAX: Final = (1 << 32) - 1
_MS_LEAST: Final = -(1 << 63)
_SEQUENCE_BYTES: Final = 3
_DIGEST_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class Series:
    """The fields of measurements that have a special meaning, and the time span of a bucket."""

    time_field: str
    meta_field: str | None
    span_seconds: int
    rounding_seconds: int

    @classmethod
    def of(cls, options: dict[str, Any]) -> Series:
        """The series of the stored option `timeseries`, or of the stage that unpacks its buckets."""
        granularity = options.get("granularity", "seconds")
        span = int(options.get("bucketMaxSpanSeconds") or SPANS[granularity])
        rounding = int(options.get("bucketRoundingSeconds") or ROUNDINGS[granularity])
        return cls(options["timeField"], options.get("metaField"), span, rounding)

    def start_ms(self, time_ms: int) -> int:
        """The start of a bucket whose first measurement has this time."""
        unit = self.rounding_seconds * 1000
        return max(time_ms // unit * unit, _MS_LEAST)

    def holds(self, start_ms: int, time_ms: int) -> bool:
        """Whether a bucket with this start can hold a measurement of this time."""
        return start_ms <= time_ms < start_ms + self.span_seconds * 1000

    def slots(self, meta: bytes, time_ms: int) -> Iterator[bytes]:
        """The first bytes of the `_id`s of all buckets that can hold a measurement, the newest start first."""
        digest = _digest(meta)
        start, step = self.start_ms(time_ms), self.rounding_seconds * 1000
        seconds = -1
        while self.holds(start, time_ms):
            if _seconds(start) != seconds:
                seconds = _seconds(start)
                yield seconds.to_bytes(4, "big") + digest
            start -= step

    def first_id(self, time_ms: int) -> ObjectId:
        """The least `_id` of any bucket that can hold a measurement of this time or a later one."""
        return ObjectId(_seconds(time_ms - self.span_seconds * 1000).to_bytes(4, "big") + bytes(8))

    def last_id(self, time_ms: int) -> ObjectId:
        """The greatest `_id` of any bucket that can hold a measurement of this time or an earlier one."""
        return ObjectId(_seconds(time_ms).to_bytes(4, "big") + b"\xff" * 8)

    def view_stage(self) -> dict[str, Any]:
        """The stage of the view that shows the buckets as measurements."""
        meta = {} if self.meta_field is None else {"metaField": self.meta_field}
        return {UNPACK: {"timeField": self.time_field, **meta, "bucketMaxSpanSeconds": self.span_seconds}}


def new_id(slot: bytes, before: bytes | None) -> ObjectId:
    """The `_id` of a slot's next bucket, after the `_id` `before`. Raises `OverflowError` after sixteen million."""
    number = 0 if before is None else int.from_bytes(before[-_SEQUENCE_BYTES:], "big") + 1
    return ObjectId(slot + number.to_bytes(_SEQUENCE_BYTES, "big"))


def slot_of(series: Series, meta: bytes, start_ms: int) -> bytes:
    """The first bytes of the `_id` of a bucket with this start."""
    return _seconds(start_ms).to_bytes(4, "big") + _digest(meta)


def is_buckets(name: str) -> bool:
    """Whether a collection of this name holds buckets."""
    return name.startswith(PREFIX)


def _seconds(time_ms: int) -> int:
    """The seconds in an `_id`. Dates before 1970 have the least value, dates after 2105 the greatest."""
    return min(max(time_ms // 1000, 0), _SECONDS_MAX)


def _digest(meta: bytes) -> bytes:
    from hashlib import blake2b  # imported on first use, as in `hashing`

    return blake2b(meta, digest_size=_DIGEST_BYTES).digest()
