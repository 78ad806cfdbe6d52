"""A bucket: some measurements of one source as one document.

    {_id, control: {version, min: {time}, max: {time}, count, size}, meta, data: {field: column, ...}, rows: {"0": {}}}

    min      the bucket's start; `max` is the time of the latest measurement; both under the name of the time field
    size     the bytes that the measurements had as BSON, which says when a bucket is full
    meta     the value of the meta field, missing where the measurements have none
    data     the columns (`columns.py`) of the first measurements
    rows     the later measurements, uncompressed, without meta

A measurement that is inserted alone becomes a row. When there are half as many rows as there are measurements in
columns, all rows become columns. So at most a third of a bucket is uncompressed, and each measurement is compressed
only a few times, whatever the size of the inserts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from struct import Struct, error
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import error as zlib_error

from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument

from headrace import limits
from headrace.errors import CommandError
from headrace.timeseries.columns import Element, decode_column, encode_column
from headrace.timeseries.series import Series
from headrace.values.bson import decode, encode_in_order, find_element, iter_elements

VERSION: Final = 100
"""The version of a bucket's format. MongoDB's own versions are 1, 2 and 3."""
_ROWS_LEAST: Final = 16
_DATE: Final = 0x09
_DOCUMENT: Final = 0x03
_ABSENT: Final[Element] = (0, b"")
_INT32: Final = Struct("<i").pack
_INT64: Final = Struct("<q")

Fields: TypeAlias = dict[bytes, Element]
"""All fields of a measurement except its meta field, the time first."""


class Measurement(NamedTuple):
    """A measurement, split into time, meta and other fields."""

    time_ms: int
    meta: bytes
    """The meta value as its type and bytes; empty if there is none."""
    fields: Fields
    size: int
    """The bytes of the measurement as BSON."""


class BucketHead(NamedTuple):
    """The parts of a bucket that decide whether it takes another measurement."""

    start_ms: int
    last_ms: int
    length: int
    """The number of measurements."""
    size: int
    meta: bytes

    def takes(self, series: Series, measurement: Measurement) -> bool:
        """Whether the measurement belongs into this bucket and the bucket has room."""
        return (
            self.meta == measurement.meta
            and series.holds(self.start_ms, measurement.time_ms)
            and self.length < limits.BUCKET_MEASUREMENT_COUNT_MAX
            and self.size + measurement.size <= limits.BUCKET_BYTES_MAX
        )


def taken_apart(series: Series, raw: bytes) -> Measurement:
    """The parts of a raw measurement. Raises 2 if the time is missing or not a date, 10334 for a long measurement."""
    if len(raw) > limits.MEASUREMENT_BYTES_MAX:
        raise CommandError(
            10334, f"a measurement of a time-series collection has {limits.MEASUREMENT_BYTES_MAX} bytes at most"
        )
    time_name = series.time_field.encode()
    meta_name = None if series.meta_field is None else series.meta_field.encode()
    meta, fields = b"", {time_name: _ABSENT}
    for bson_type, name, start, end in iter_elements(raw):
        if name == meta_name:
            meta = bytes((bson_type,)) + raw[start:end]
        else:
            fields[name] = bson_type, raw[start:end]
    bson_type, value = fields[time_name]
    if bson_type != _DATE:
        raise CommandError(2, f"'{series.time_field}' must be present and contain a valid BSON UTC datetime value")
    return Measurement(_INT64.unpack(value)[0], meta, fields, len(raw))


def head_of(series: Series, raw: bytes) -> BucketHead:
    """The head of a raw bucket. Raises 9 for a document that is not a bucket."""
    element = find_element(raw, b"control")
    try:
        if element is None or element[0] != _DOCUMENT:
            raise _broken()
        control = decode(raw[element[1] : element[2]])
        if control["version"] != VERSION:
            raise _broken()
        start, last = control["min"][series.time_field], control["max"][series.time_field]
        return BucketHead(int(start), int(last), control["count"], control["size"], meta_of(raw))
    except (KeyError, TypeError):
        raise _broken() from None


def meta_of(raw: bytes) -> bytes:
    """The meta value of a raw bucket as its type and bytes; empty if there is none."""
    element = find_element(raw, b"meta")
    return b"" if element is None else bytes((element[0],)) + raw[element[1] : element[2]]


def new_bucket(series: Series, bucket_id: ObjectId, start_ms: int, measurements: Sequence[Measurement]) -> bytes:
    """A raw bucket of these measurements, at least one; all have the same meta."""
    head = BucketHead(
        start_ms, max(item.time_ms for item in measurements), len(measurements),
        sum(item.size for item in measurements), measurements[0].meta,
    )  # fmt: skip
    rows = [item.fields for item in measurements]
    if len(rows) < _ROWS_LEAST:
        return _document(series, bucket_id.binary, head, b"", list(map(_row, rows)))
    return _document(series, bucket_id.binary, head, _packed(rows), [])


def extended(series: Series, raw: bytes, measurements: Sequence[Measurement]) -> tuple[bytes, bytes]:
    """(new bucket, oplog entry) of a raw bucket to which measurements are added. The entry is a `$v: 2` diff or the
    bucket."""
    before = head_of(series, raw)
    last = max(before.last_ms, *(item.time_ms for item in measurements))
    count, size = before.length + len(measurements), before.size + sum(item.size for item in measurements)
    head = BucketHead(before.start_ms, last, count, size, before.meta)
    element = find_element(raw, b"_id")
    assert element is not None
    bucket_id = raw[element[1] : element[2]]
    data, rows = _parts(raw)
    added = [_row(item.fields) for item in measurements]
    rows_count = len(rows) + len(added)
    is_full = count >= limits.BUCKET_MEASUREMENT_COUNT_MAX
    if is_full or rows_count >= max(_ROWS_LEAST, (count - rows_count) // 2):
        bodies = [time + rest for time, rest in _bodies(data, before.length - len(rows))]
        fields = map(_fields, [*bodies, *(row[4:-1] for row in rows)])
        packed = _packed([*fields, *(item.fields for item in measurements)])
        new = _document(series, bucket_id, head, packed, [])
        return new, new
    diff = {
        "scontrol": {
            "u": {"count": count, "size": size}, "smax": {"u": {series.time_field: DatetimeMS(last)}},
        },
        "srows": {"i": {str(number): RawBSONDocument(row) for number, row in enumerate(added, len(rows))}},
    }  # fmt: skip
    new = _document(series, bucket_id, head, data[4:-1], [*rows, *added])
    return new, encode_in_order({"$v": 2, "diff": diff})


def measurements_of(series: Series, raw: bytes) -> Iterator[bytes]:
    """The measurements of a raw bucket as raw documents: time, meta, other fields. Raises 9 if it is not a bucket."""
    head = head_of(series, raw)
    meta = b""
    if head.meta and series.meta_field is not None:
        meta = head.meta[:1] + series.meta_field.encode() + b"\0" + head.meta[1:]
    try:
        data, rows = _parts(raw)
        bodies = list(_bodies(data, head.length - len(rows)))
    except (IndexError, InvalidBSON, TypeError, ValueError, error, zlib_error):
        raise _broken() from None
    for time, rest in bodies:
        body = time + meta + rest
        yield _INT32(len(body) + 5) + body + b"\0"
    for row in rows:
        first = next(iter_elements(row))[3]
        body = row[4:first] + meta + row[first:-1]
        yield _INT32(len(body) + 5) + body + b"\0"


def _parts(raw: bytes) -> tuple[bytes, list[bytes]]:
    """The document of columns and the list of rows of a raw bucket."""
    data, rows = find_element(raw, b"data"), find_element(raw, b"rows")
    if data is None or rows is None or data[0] != _DOCUMENT or rows[0] != _DOCUMENT:
        raise _broken()
    return raw[data[1] : data[2]], [raw[start:end] for _, _, start, end in iter_elements(raw, rows[1])]


def _bodies(data: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    """The time and the other fields of each measurement in columns, as BSON elements."""
    columns = [
        decode_column(data[start + 5 : end], name, count) for _, name, start, end in iter_elements(data) if count
    ]
    if columns:
        yield from zip(columns[0], map(b"".join, zip(*columns[1:])) if len(columns) > 1 else repeat(b""))


def _fields(body: bytes) -> Fields:
    """The fields in concatenated BSON elements."""
    wrapped = bytes(4) + body + b"\0"
    return {name: (bson_type, wrapped[start:end]) for bson_type, name, start, end in iter_elements(wrapped)}


def _row(fields: Fields) -> bytes:
    body = b"".join(bytes((kind,)) + name + b"\0" + value for name, (kind, value) in fields.items())
    return _INT32(len(body) + 5) + body + b"\0"


def _packed(rows: Sequence[Fields]) -> bytes:
    """The columns of these measurements, as BSON elements."""
    names = dict.fromkeys(name for row in rows for name in row)
    elements = []
    for name in names:
        column = encode_column([row.get(name, _ABSENT) for row in rows])
        elements.append(b"\x05" + name + b"\0" + _INT32(len(column)) + b"\0" + column)
    return b"".join(elements)


def _document(series: Series, bucket_id: bytes, head: BucketHead, columns: bytes, rows: list[bytes]) -> bytes:
    control: dict[str, Any] = {
        "version": VERSION, "min": {series.time_field: DatetimeMS(head.start_ms)},
        "max": {series.time_field: DatetimeMS(head.last_ms)}, "count": head.length, "size": head.size,
    }  # fmt: skip
    meta = head.meta[:1] + b"meta\0" + head.meta[1:] if head.meta else b""
    shown = b"".join(b"\x03" + str(number).encode() + b"\0" + row for number, row in enumerate(rows))
    body = b"".join((
        b"\x07_id\0", bucket_id, b"\x03control\0", encode_in_order(control), meta,
        b"\x03data\0", _INT32(len(columns) + 5), columns, b"\0", b"\x03rows\0", _INT32(len(shown) + 5), shown, b"\0",
    ))  # fmt: skip
    return _INT32(len(body) + 5) + body + b"\0"


def _broken() -> CommandError:
    return CommandError(9, "a document of a time-series collection's buckets is not a bucket of this server's format")
