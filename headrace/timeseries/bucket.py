"""A bucket: some measurements of one source as one document.

    {_id, control: {version, min: {time}, max: {time}, count, size}, meta, data: {field: column, ...}, rows: {"0": {}}}

    min      the bucket's start; `max` is the time of the latest measurement; both under the name of the time field
    size     the bytes that the measurements had as BSON, which says when a bucket is full
    meta     the value of the meta field, missing where the measurements have none
    data     the columns of the first measurements
    rows     the later measurements, uncompressed, without meta

A measurement that is inserted alone becomes a row. When there are half as many rows as there are measurements in
columns, all rows become columns. So at most a third of a bucket is uncompressed, and each measurement is compressed
only a few times, whatever the size of the inserts.

    column    layout (1 byte) | presence | values
    layout    GENERIC, SAME_TYPE, INTEGERS, DOUBLES, DECIMALS or OBJECT_IDS, + 0x80 where measurements lack the field
    presence  block, only with 0x80: a byte for each measurement, 1 if it has the field
    block     length of the rest (4 bytes) | raw deflate
    numbers   first (9 bytes) | least step (9 bytes) | width of a step (0, 1, 2, 4, 8) | block of steps, byte by byte

Integers, dates and object ids change little from one measurement to the next. A column stores each step minus the least
step, in the fewest bytes that hold every step: the first bytes of all steps, then the second bytes. Doubles with few
decimal places are stored as integers times a power of ten. Other values are compressed as they are. All numbers are
little-endian.

Rule: a column gives back exactly the bytes that were written, including `-0.0`, NaN and the type of a number.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from struct import Struct, error, pack, unpack
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import error as zlib_error

from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument

from headrace import limits
from headrace.errors import CommandError
from headrace.timeseries.series import Series
from headrace.values.bson import decode, encode_in_order, find_element, iter_elements, value_size

Element: TypeAlias = tuple[int, bytes]
"""A BSON type and the bytes of a value; type 0 if the measurement lacks the field."""

_GENERIC, _SAME_TYPE, _INTEGERS, _DOUBLES, _DECIMALS, _OBJECT_IDS = range(6)
_SPARSE: Final = 0x80
_DOUBLE, _OBJECT_ID, _DATE, _INT32, _TIMESTAMP, _INT64 = 0x01, 0x07, 0x09, 0x10, 0x11, 0x12
_INTEGER_CODES: Final = {_DATE: "q", _INT32: "i", _INT64: "q", _TIMESTAMP: "q"}
_STEP_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_SCALES: Final = (1, 10, 100, 1000, 10_000)
_EXACT: Final = 2.0**53
_LENGTH: Final = Struct("<I")
_COMPRESSION_LEVEL: Final = 6


def encode_column(elements: Sequence[Element]) -> bytes:
    """Return the column of these values. At least one value must be present."""
    present = [element for element in elements if element[0]]
    head, layout = b"", 0
    if len(present) < len(elements):
        head, layout = _block(bytes(element[0] != 0 for element in elements)), _SPARSE
    types = {element[0] for element in present}
    values = [element[1] for element in present]
    kind, body = _encode(types.pop() if len(types) == 1 else 0, present, values)
    return bytes((layout | kind,)) + head + body


def _encode(bson_type: int, present: list[Element], values: list[bytes]) -> tuple[int, bytes]:
    """(layout, values); `bson_type` is 0 if the values differ in type."""
    if not bson_type:
        return _GENERIC, _block(b"".join(bytes((kind,)) + value for kind, value in present))
    head = bytes((bson_type,))
    joined = b"".join(values)
    if bson_type in _INTEGER_CODES:
        return _INTEGERS, head + _numbers(unpack(f"<{len(values)}{_INTEGER_CODES[bson_type]}", joined))
    if bson_type == _OBJECT_ID:
        return _OBJECT_IDS, _object_ids(values)
    if bson_type == _DOUBLE:
        doubles = unpack(f"<{len(values)}d", joined)
        for place, scale in enumerate(_SCALES):
            if (integers := _scaled(doubles, scale, joined)) is not None:
                return _DECIMALS, bytes((place,)) + _numbers(integers)
        return _DOUBLES, _block(_planes(joined, 8))
    return _SAME_TYPE, head + _block(joined)


def _scaled(doubles: tuple[float, ...], scale: int, joined: bytes) -> tuple[int, ...] | None:
    """The doubles times `scale`, if the products are integers that convert back to the same doubles; otherwise None."""
    first = doubles[0] * scale
    if not -_EXACT < first < _EXACT or round(first) / scale != doubles[0]:  # the first value decides most cases
        return None
    if not all(-_EXACT < value * scale < _EXACT for value in doubles):
        return None
    integers = tuple(round(value * scale) for value in doubles)
    return integers if pack(f"<{len(doubles)}d", *(value / scale for value in integers)) == joined else None


def _object_ids(values: list[bytes]) -> bytes:
    times = [int.from_bytes(value[:4], "big") for value in values]
    counters = [int.from_bytes(value[9:], "big") for value in values]
    return _numbers(times) + _block(_planes(b"".join(value[4:9] for value in values), 5)) + _numbers(counters)


def _numbers(integers: Sequence[int]) -> bytes:
    steps = [after - before for before, after in pairwise(integers)]
    least = min(steps, default=0)
    most = max(steps, default=0) - least
    head = integers[0].to_bytes(9, "little", signed=True) + least.to_bytes(9, "little", signed=True)
    if not most:
        return head + b"\0"
    width = next((width for width in _STEP_CODES if most < 1 << 8 * width), 0)
    if not width:  # steps wider than 64 bits are computed modulo 2**64, like the sum
        width, steps = 8, [(step - least) % (1 << 64) for step in steps]
    else:
        steps = [step - least for step in steps]
    packed = pack(f"<{len(steps)}{_STEP_CODES[width]}", *steps)
    return head + bytes((width,)) + _block(_planes(packed, width))


def _planes(joined: bytes, width: int) -> bytes:
    """The first bytes of all items, then the second bytes, and so on."""
    return b"".join(joined[place::width] for place in range(width))


def _items(planes: bytes, width: int) -> bytes:
    """Undo `_planes`."""
    count = len(planes) // width
    joined = bytearray(len(planes))
    for place in range(width):
        joined[place::width] = planes[place * count : (place + 1) * count]
    return bytes(joined)


def _block(data: bytes) -> bytes:
    packer = zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, -15)
    packed = packer.compress(data) + packer.flush()
    return _LENGTH.pack(len(packed)) + packed


class _ColumnReader:
    """Reads the parts of a column in order."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1

    def byte(self) -> int:
        """The next byte."""
        self._at += 1
        return self._data[self._at - 1]

    def integer(self) -> int:
        """The next integer of nine bytes."""
        self._at += 9
        return int.from_bytes(self._data[self._at - 9 : self._at], "little", signed=True)

    def block(self) -> bytes:
        """The next block, decompressed."""
        start = self._at + _LENGTH.size
        self._at = start + int(_LENGTH.unpack_from(self._data, self._at)[0])
        return zlib.decompress(self._data[start : self._at], -15)

    def numbers(self, count: int) -> Iterator[int]:
        """The next `count` numbers."""
        first, least, width = self.integer(), self.integer(), self.byte()
        if not width:
            return iter(range(first, first + count * least, least) if least else [first] * count)
        steps = unpack(f"<{count - 1}{_STEP_CODES[width]}", _items(self.block(), width))
        return accumulate((step + least for step in steps), initial=first)


def decode_column(data: bytes, name: bytes, count: int) -> list[bytes]:
    """The field of each of `count` measurements as a BSON element; empty if the field is missing.

    Raises `ValueError`, `IndexError`, `struct.error` or `zlib.error` if the data is not a column.
    """
    reader = _ColumnReader(data)
    present = reader.block() if data[0] & _SPARSE else None
    there = count if present is None else sum(present)
    elements = _decode(reader, data[0] & ~_SPARSE, name + b"\0", there)
    if present is None:
        return elements
    found = iter(elements)
    return [next(found) if is_there else b"" for is_there in present]


def _decode(reader: _ColumnReader, kind: int, name: bytes, count: int) -> list[bytes]:
    if kind == _GENERIC:
        return _generic(reader.block(), name)
    if kind == _OBJECT_IDS:
        return _ids(reader, name, count)
    if kind == _DOUBLES:
        return _fixed(_DOUBLE, name, _items(reader.block(), 8), 8)
    if kind == _DECIMALS:
        scale = _SCALES[reader.byte()]
        return _fixed(_DOUBLE, name, pack(f"<{count}d", *(value / scale for value in reader.numbers(count))), 8)
    bson_type = reader.byte()
    if kind == _SAME_TYPE:
        return _same_type(bson_type, name, reader.block(), count)
    if kind != _INTEGERS:
        raise ValueError("not a column of a bucket")
    if bson_type == _INT32:
        return _fixed(bson_type, name, pack(f"<{count}i", *reader.numbers(count)), 4)
    wrapped = (value & 0xFFFFFFFFFFFFFFFF for value in reader.numbers(count))
    return _fixed(bson_type, name, pack(f"<{count}Q", *wrapped), 8)


def _fixed(bson_type: int, name: bytes, joined: bytes, size: int) -> list[bytes]:
    head = bytes((bson_type,)) + name
    return [head + joined[at : at + size] for at in range(0, len(joined), size)]


def _ids(reader: _ColumnReader, name: bytes, count: int) -> list[bytes]:
    times = list(reader.numbers(count))
    middle = _items(reader.block(), 5)
    head = bytes((_OBJECT_ID,)) + name
    return [
        head + time.to_bytes(4, "big") + middle[5 * at : 5 * at + 5] + counter.to_bytes(3, "big")
        for at, (time, counter) in enumerate(zip(times, reader.numbers(count)))
    ]


def _same_type(bson_type: int, name: bytes, joined: bytes, count: int) -> list[bytes]:
    head, at, elements = bytes((bson_type,)) + name, 0, []
    for _ in range(count):
        end = at + value_size(bson_type, joined, at)
        elements.append(head + joined[at:end])
        at = end
    return elements


def _generic(joined: bytes, name: bytes) -> list[bytes]:
    at, elements = 0, []
    while at < len(joined):
        end = at + 1 + value_size(joined[at], joined, at + 1)
        elements.append(joined[at : at + 1] + name + joined[at + 1 : end])
        at = end
    return elements


VERSION: Final = 100
"""The version of a bucket's format. MongoDB's own versions are 1, 2 and 3."""
_ROWS_LEAST: Final = 16
_DOCUMENT: Final = 0x03
_ABSENT: Final[Element] = (0, b"")
_pack_int32: Final = Struct("<i").pack
_int64: Final = Struct("<q")

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
    return Measurement(_int64.unpack(value)[0], meta, fields, len(raw))


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
        yield _pack_int32(len(body) + 5) + body + b"\0"
    for row in rows:
        first = next(iter_elements(row))[3]
        body = row[4:first] + meta + row[first:-1]
        yield _pack_int32(len(body) + 5) + body + b"\0"


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
    return _pack_int32(len(body) + 5) + body + b"\0"


def _packed(rows: Sequence[Fields]) -> bytes:
    """The columns of these measurements, as BSON elements."""
    names = dict.fromkeys(name for row in rows for name in row)
    elements = []
    for name in names:
        column = encode_column([row.get(name, _ABSENT) for row in rows])
        elements.append(b"\x05" + name + b"\0" + _pack_int32(len(column)) + b"\0" + column)
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
        b"\x03data\0", _pack_int32(len(columns) + 5), columns, b"\0",
        b"\x03rows\0", _pack_int32(len(shown) + 5), shown, b"\0",
    ))  # fmt: skip
    return _pack_int32(len(body) + 5) + body + b"\0"


def _broken() -> CommandError:
    return CommandError(9, "a document of a time-series collection's buckets is not a bucket of this server's format")
