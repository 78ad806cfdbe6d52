"""Inserting measurements into the buckets of a time series, and deleting them.

Rule: there is no pause between reading a bucket and writing it. A client's transaction may not write to a time series,
so no bucket is ever locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from bson import ObjectId

from headrace.dispatch.context import CommandContext
from headrace.errors import CommandError
from headrace.execution.plan import Finder
from headrace.execution.time_series import Buckets
from headrace.execution.writes.matches import MatchedDocument, Target, current, is_unchanged, matches
from headrace.query.match import Predicate, parse_filter
from headrace.store.catalog import Index
from headrace.store.indexes.index_entries import key_maker
from headrace.store.write_transaction import RetryableWrite
from headrace.timeseries.bucket import Measurement, extended, head_of, measurements_of, new_bucket, taken_apart
from headrace.timeseries.series import new_id, slot_of
from headrace.timeseries.translation import bucket_filter
from headrace.values.bson import decode
from headrace.values.keystring.encoding import encode_value


def check_no_transaction(context: CommandContext, what: str, namespace: str) -> None:
    """Raise 263 in a client's transaction."""
    if context.transaction is not None:
        raise CommandError(263, f"Cannot {what} a time-series collection in a multi-document transaction: {namespace}")


def insert_measurements(
    context: CommandContext, buckets: Buckets, measurements: Iterable[Measurement], retryable: RetryableWrite | None
) -> None:
    """Insert measurements; those of one source in the order of time. This does not pause."""
    by_meta: dict[bytes, list[Measurement]] = {}
    for measurement in measurements:
        by_meta.setdefault(measurement.meta, []).append(measurement)
    for of_source in by_meta.values():
        of_source.sort(key=lambda item: item.time_ms)
        first = 0
        while first < len(of_source):
            first += _fill(context, buckets, of_source[first:] if first else of_source, retryable)


def refused_sources(buckets: Buckets, measurements: Iterable[Measurement]) -> dict[bytes, CommandError]:
    """Return the errors of sources that an index cannot hold, by `Measurement.meta`."""
    collection, series = buckets
    indexes = [index for index in collection.maintained if _may_refuse(index)]
    errors: dict[bytes, CommandError] = {}
    if indexes:
        for measurement in {item.meta: item for item in measurements}.values():
            raw = new_bucket(series, _NO_ID, series.start_ms(measurement.time_ms), [measurement])
            try:
                for index in indexes:
                    key_maker(index).keys(raw)
            except CommandError as error:
                errors[measurement.meta] = error
    return errors


def _may_refuse(index: Index) -> bool:
    """Whether an index has no keys for some sources: it is hashed, of places, or has several paths in the source."""
    key = index.spec["key"]
    return any(type(kind) is str for kind in key.values()) or sum(path.startswith("meta.") for path in key) > 1


_NO_ID: Final = ObjectId(bytes(12))


def _fill(
    context: CommandContext, buckets: Buckets, measurements: Sequence[Measurement], retryable: RetryableWrite | None
) -> int:
    """Write as many measurements as fit in one bucket, at least one. Return their number."""
    txn, (collection, series) = context.txn, buckets
    first = measurements[0]
    found = _newest(context, buckets, first)
    if found is not None:
        record, raw = found
        count = _fitting(buckets, raw, measurements)
        if count:
            new, logged = extended(series, raw, measurements[:count])
            txn.replace(collection, record, raw, new, logged, retryable)
            return count
    start = series.start_ms(first.time_ms)
    slot = slot_of(series, first.meta, start)
    last = next(_ids(context, buckets, slot), None)
    bucket_id = new_id(slot, last)
    raw = new_bucket(series, bucket_id, start, [first])
    count = 1 + _fitting(buckets, raw, measurements[1:])
    if count > 1:
        raw = new_bucket(series, bucket_id, start, measurements[:count])
    txn.insert(collection, raw, retryable)
    return count


def _fitting(buckets: Buckets, raw: bytes, measurements: Sequence[Measurement]) -> int:
    """Return how many of the first measurements fit in a bucket."""
    head = head_of(buckets.series, raw)
    for count, measurement in enumerate(measurements):
        if not head.takes(buckets.series, measurement):
            return count
        head = head._replace(length=head.length + 1, size=head.size + measurement.size)
    return len(measurements)


def _newest(context: CommandContext, buckets: Buckets, measurement: Measurement) -> tuple[bytes, bytes] | None:
    """Return (record, raw) of the source's newest bucket for this time, full or not; or None."""
    for slot in buckets.series.slots(measurement.meta, measurement.time_ms):
        for bucket_id in _ids(context, buckets, slot):
            return context.txn.by_id(buckets.collection, encode_value(ObjectId(bucket_id)))
    return None


def _ids(context: CommandContext, buckets: Buckets, slot: bytes) -> Iterator[bytes]:
    """Yield the `_id`s of the buckets in a slot, the newest first."""
    low = encode_value(ObjectId(slot + b"\0" * 3))
    high = encode_value(ObjectId(slot + b"\xff" * 3)) + b"\0"
    for key, _ in context.txn.id_keys(buckets.collection, low, high, backward=True):
        yield key[-12:]


def delete_measurements(
    context: CommandContext, buckets: Buckets, spec: dict[str, Any], collation: Any, variables: Any,
    retryable: RetryableWrite | None, hint: Any, *, one: bool, removed: Callable[[dict[str, Any]], None],
) -> None:  # fmt: skip
    """Delete all matching measurements, or one. `removed` is called with each."""
    predicate = parse_filter(spec, collation=collation, variables=variables) if spec else None
    of_buckets = bucket_filter(buckets.series, spec)
    finder = Finder(buckets.collection, of_buckets, collation, variables, hint)
    target = Target(context, buckets.collection)
    for match in matches(context, finder, 1 if one else None):
        gone = _delete_from(context, buckets, target, finder, match, predicate, retryable, one=one)
        for document in gone:
            removed(document)
        if one and gone:
            return


def _delete_from(
    context: CommandContext, buckets: Buckets, target: Target, finder: Finder, match: MatchedDocument,
    predicate: Predicate | None, retryable: RetryableWrite | None, *, one: bool,
) -> list[dict[str, Any]]:  # fmt: skip
    """Delete the matching measurements of a bucket, and return them."""
    series = buckets.series
    while True:
        latest = current(context, target, finder, match)
        if latest is None:
            return []
        match = latest
        gone: list[dict[str, Any]] = []
        left: list[bytes] = []
        for raw in measurements_of(series, match.raw):
            document = decode(raw)
            if (one and gone) or (predicate is not None and not predicate(document)):
                left.append(raw)
            else:
                gone.append(document)
        if not gone:
            return []
        new = b""
        if left:
            rest = [taken_apart(series, raw) for raw in left]
            new = new_bucket(series, match.document["_id"], head_of(series, match.raw).start_ms, rest)
        if not is_unchanged(context, target, match):
            continue
        if new:
            context.txn.replace(target.collection, match.record, match.raw, new, new, retryable)
        else:
            context.txn.delete(target.collection, match.record, match.raw, retryable)
        return gone
