"""The columns of a bucket: the values of one field in all measurements, compressed.

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
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack
from typing import Final, TypeAlias

from headrace.values.bson import value_size

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
