"""TTL indexes: delete documents whose date is older than `expireAfterSeconds`, in bounded pieces.

The index of a clustered collection with `expireAfterSeconds` is a TTL index, too.

Expired documents are deleted like any others: with an oplog entry, and an event for streams. Source: MongoDB's TTL
monitor. It makes a round each `ttlMonitorSleepSecs`; only dates expire, in an array the earliest one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.cursors.index_scan import walk_keys
from headrace.execution.planner.bounds import End, Interval
from headrace.execution.planner.id_ranges import range_of
from headrace.query.match import parse_filter
from headrace.server.clocks import ExpiryClock
from headrace.server.job_steps import let_others_run
from headrace.store.catalog import Collection, Index
from headrace.store.checksums.transaction import DamagedValue
from headrace.store.indexes.index_keys import descends
from headrace.store.view import View
from headrace.timeseries.bucket import head_of
from headrace.timeseries.series import Series
from headrace.values.bson import MISSING, decode
from headrace.values.keystring.encoding import encode_value
from headrace.values.paths import get_path, split_path

if TYPE_CHECKING:
    from headrace.server.background import JobHost
    from headrace.store.write_transaction import WriteTransaction


class TimeToLive:
    """The expiry rounds of one server."""

    def __init__(self, core: JobHost) -> None:
        self._core = core
        self._round_ms = -math.inf  # start of the last round, on the monotonic clock
        self._expiry_clock = ExpiryClock(core.engine.clock)

    async def tick(self) -> None:
        """Make a round if one is due."""
        engine = self._core.engine
        now_ms, at_ms = self._expiry_clock.now_ms(), engine.clock.monotonic_ms()
        if at_ms < self._round_ms + engine.parameters["ttlMonitorSleepSecs"] * 1000:
            return
        self._round_ms = at_ms
        await self.round(now_ms)

    async def round(self, now_ms: int) -> int:
        """Delete documents that have expired as of `now_ms`; return their number."""
        removed = 0
        for collection in list(self._core.store.catalog.collections.values()):
            for index in collection.indexes:
                if is_ttl(index):
                    removed += await self._expire(collection, index, now_ms)
        return removed

    async def _expire(self, collection: Collection, index: Index, now_ms: int) -> int:
        """Walk the passed dates piece by piece. The collection may change or be dropped between the pieces."""
        after: bytes | None = None
        removed = 0
        while True:
            with self._core.store.reading() as view:
                now = _current(view, collection, index)
                if now is None:
                    return removed
                piece = list(islice(_keys(view, collection, now, now_ms, after), limits.TTL_COUNT_MAX))
                old = [record for _, record in piece if _expired(view, collection, record, now, now_ms) is not None]
            if old:
                gone: list[int] = []
                await self._core.writer.add_job(
                    lambda txn, old=old, gone=gone: gone.append(delete_expired(txn, collection, index, old, now_ms))  # type: ignore[misc]
                )
                removed += gone[-1]
            if not piece:
                return removed
            await let_others_run()
            after = piece[-1][0]


def _current(view: View, collection: Collection, index: Index) -> Index | None:
    """Return the present version of an index in this view; None if it is no longer a TTL index."""
    now = view.catalog.by_number.get(collection.number)
    indexes = () if now is None else now.indexes
    return next((item for item in indexes if item.number == index.number and is_ttl(item)), None)


def _keys(
    view: View, collection: Collection, index: Index, now_ms: int, after: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, record) of the passed dates after the key `after`."""
    dates = _expired_dates(index, now_ms, _series_of(collection) if index.is_clustered else None)
    if not index.is_clustered:
        return walk_keys(view, index, _expired_keys(index, dates), backward=False, after=after)
    low, high = range_of(dates)
    return view.id_keys(collection, low if after is None else after + b"\0", high)


def _series_of(collection: Collection) -> Series | None:
    """Return the time series whose buckets expire with their last measurements; None for other collections."""
    options = collection.options.get("timeseries")
    return None if options is None else Series.of(options)


def _expired_dates(index: Index, now_ms: int, series: Series | None) -> Interval:
    latest = max(now_ms - index.spec["expireAfterSeconds"] * 1000, _DATE_LEAST)
    if series is not None:
        return Interval(End(_OBJECT_IDS, None, is_prefix=True), End(encode_value(series.first_id(latest)), None))
    return Interval(End(_DATES, None, is_prefix=True), End(encode_value(DatetimeMS(latest)), None))


def _expired_keys(index: Index, dates: Interval) -> list[tuple[bytes, bytes]]:
    """Return the range of an index's keys whose dates have passed, including earlier dates of arrays with later
    ones."""
    low, high = dates.positions(descends(next(iter(index.spec["key"].values()))))
    number = index.number.to_bytes(4, "big")
    return [(number + low, number + high)]


_DATES: Final = b"\x78"
_OBJECT_IDS: Final = b"\x64"
_DATE_LEAST: Final = -(1 << 63)


def is_ttl(index: Index) -> bool:
    """Return whether the index expires documents: `expireAfterSeconds` on a single field or a clustered collection."""
    return (
        (index.has_entries or index.is_clustered) and "expireAfterSeconds" in index.spec and len(index.spec["key"]) == 1
    )


def is_expired(index: Index, document: bytes, now_ms: int) -> bool:
    """Return whether a raw document's date is older than the index allows."""
    decoded = decode(document)
    value = get_path(decoded, split_path(next(iter(index.spec["key"]))))
    dates = [int(item) for item in (value if type(value) is list else [value]) if type(item) is DatetimeMS]
    if not dates or value is MISSING or min(dates) + index.spec["expireAfterSeconds"] * 1000 > now_ms:
        return False
    return _covers(index, decoded)


def _expired(view: View, collection: Collection, record: bytes, index: Index, now_ms: int) -> bytes | None:
    """Return the document of a record if it has expired, otherwise None. An unreadable document has not expired."""
    try:
        document = view.by_record(collection, record)
    except DamagedValue:
        return None
    if index.is_clustered and (series := _series_of(collection)) is not None:
        latest = now_ms - index.spec["expireAfterSeconds"] * 1000
        return document if document is not None and _is_old_bucket(series, document, latest) else None
    return document if document is not None and is_expired(index, document, now_ms) else None


def _is_old_bucket(series: Series, bucket: bytes, latest_ms: int) -> bool:
    """Return whether all measurements of a bucket are from `latest_ms` or earlier."""
    return head_of(series, bucket).last_ms <= latest_ms


def _covers(index: Index, document: dict[str, Any]) -> bool:
    spec = index.spec.get("partialFilterExpression")
    return spec is None or bool(parse_filter(spec)(document))


def delete_expired(
    txn: WriteTransaction, collection: Collection, index: Index, records: list[bytes], now_ms: int
) -> int:
    """Delete the records that still exist and are still expired; return their number."""
    now = _current(txn, collection, index)
    if now is None:
        return 0
    collection = txn.catalog.current(collection)
    removed = 0
    for record in records:
        document = _expired(txn, collection, record, now, now_ms)
        if document is not None and not txn.is_locked(collection, record):
            txn.delete(collection, record, document)
            removed += 1
    return removed
